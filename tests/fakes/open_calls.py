"""Calls to facilitators that are not HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.payments.facilitator_call import Answered
from worker.x402.facilitator_answers import FacilitatorAnswer


class AnswersAtOnce:
    """A facilitator that has answered when a call begins."""

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        raise NotImplementedError

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        raise NotImplementedError

    def begin_verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answered:
        return Answered(self.verify(payload, requirements))

    def begin_settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answered:
        return Answered(self.settle(payload, requirements))
