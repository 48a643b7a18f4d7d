"""Calls to facilitators that are not HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.payments.facilitator_call import Answered
from worker.x402.facilitator_answers import FacilitatorAnswer


class AnswersAtOnce:
    """A facilitator that has answered when a call begins. Nobody asks it before a claim."""

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        raise NotImplementedError

    def begin_verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> None:
        return None

    def begin_settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answered:
        return Answered(self.settle(payload, requirements))
