"""One call to a facilitator: sent when it is made, answered later, and its connection kept if it can be."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from ssl import SSLError
from typing import Protocol, cast

from worker.core.nesting import deeper_than
from worker.payments.http_exchange import BadAnswer, Exchange, HttpAnswer, NotYet, Overlong
from worker.payments.kept_links import KeptLinks
from worker.x402.facilitator_answers import EXTENSION_RESPONSES, FacilitatorAnswer, read_catalog_status
from worker.x402.headers import MAX_DEPTH

_CATALOG = EXTENSION_RESPONSES.lower()


class OpenCall(Protocol):
    """A call that was begun. Who does not wait for its answer to the end leaves it."""

    def answer(self) -> FacilitatorAnswer: ...

    def answer_within(self, seconds: float) -> FacilitatorAnswer | None:
        """None if it takes longer; it can be waited for again."""

    def leave(self) -> None: ...


class Answered:
    """A call whose answer is known."""

    def __init__(self, answer: FacilitatorAnswer) -> None:
        self._answer = answer

    def answer(self) -> FacilitatorAnswer:
        return self._answer

    def answer_within(self, seconds: float) -> FacilitatorAnswer:
        return self._answer

    def leave(self) -> None:
        pass


class HttpCall:
    """A request that was sent. Never raises because of what the facilitator did: that is an answer, too.

    `ended` is told the answer.
    """

    __slots__ = ("_answer", "_ended", "_exchange", "_link", "_links")

    def __init__(
        self,
        links: KeptLinks,
        link: socket.socket,
        exchange: Exchange,
        ended: Callable[[FacilitatorAnswer], FacilitatorAnswer],
    ) -> None:
        self._links, self._link, self._exchange, self._ended = links, link, exchange, ended
        self._answer: FacilitatorAnswer | None = None

    def answer(self) -> FacilitatorAnswer:
        return self._answer or cast(FacilitatorAnswer, self._wait(None))

    def answer_within(self, seconds: float) -> FacilitatorAnswer | None:
        return self._answer or self._wait(seconds)

    def leave(self) -> None:
        if self._answer is None:
            self._link.close()

    def _wait(self, within: float | None) -> FacilitatorAnswer | None:
        kept = False
        try:
            exchange = self._exchange
            answer = exchange.answer() if within is None else exchange.answer_within(within)
            found = _parsed(answer)
            if answer.stays:
                kept = True
                self._links.give_back(self._link)
        except NotYet:
            kept = True
            return None
        except Overlong as error:
            found = FacilitatorAnswer(status=error.status, fault="too_large")
        except (BadAnswer, OSError) as error:
            found = FacilitatorAnswer(fault=fault_of(error))
        finally:
            if not kept:
                self._link.close()
        self._answer = found
        return self._ended(found)


def _parsed(answer: HttpAnswer) -> FacilitatorAnswer:
    try:
        text = answer.body.decode("utf-8")
        document = None if deeper_than(text, MAX_DEPTH) else json.loads(text)
    except ValueError:
        document = None
    catalog = read_catalog_status(answer.headers.get(_CATALOG))
    if not isinstance(document, dict):
        fault = "garbage" if answer.body else "empty"
        return FacilitatorAnswer(status=answer.status, fault=fault, catalog=catalog)
    return FacilitatorAnswer(status=answer.status, body=document, catalog=catalog)


def fault_of(error: BaseException | None) -> str:
    """Return a short name for the fault; the exception's own text may contain addresses."""
    if isinstance(error, SSLError):
        return "tls"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ConnectionError | BadAnswer):
        return "dropped"
    return "transport"
