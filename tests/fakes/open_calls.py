"""Calls to facilitators that are not HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from worker.payments.facilitator_call import Answered
from worker.x402.facilitator_answers import FacilitatorAnswer


class AnswersAtOnce(ABC):
    """A facilitator that has answered when a call begins."""

    @abstractmethod
    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer: ...

    @abstractmethod
    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer: ...

    def begin_verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answered:
        return Answered(self.verify(payload, requirements))

    def begin_settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answered:
        return Answered(self.settle(payload, requirements))
