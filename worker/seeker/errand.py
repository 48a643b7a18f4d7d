"""One run at one purchase under a contract: it keeps what must be kept and does what `exchange` decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from worker.seeker import exchange, readings
from worker.seeker.checks import choose
from worker.seeker.demand import Asking
from worker.seeker.drawer import Ending, Fate, Purchase
from worker.seeker.exchange import Finish, Poll, Register, Send, Sign, Situation, Stop
from worker.seeker.http import Dropped
from worker.seeker.problems import AnswerUnreadable, WorkerRefused, WorkerUnreachable
from worker.seeker.readings import Asked, Done, Failed, Reading, Refused, Unsure, Working
from worker.seeker.remote import Remote
from worker.seeker.result import Result, result_of
from worker.seeker.stream import Event, Follower

if TYPE_CHECKING:
    from worker.seeker.client import Seeker


class Errand:
    """Takes one step after another until there is a result or nothing more to be done."""

    def __init__(self, seeker: Seeker, purchase: Purchase, again: bool) -> None:
        assert purchase.contract is not None
        self._seeker = seeker
        self._contract = purchase.contract
        self._remote = Remote(seeker.http, purchase.url)
        self._now = Situation(purchase, asked_again=again)
        self._unsure_since: float | None = None
        self._task_url = self._etag = ""
        self._follower: Follower | None = None
        self._seen: Reading | None = None

    @property
    def _purchase(self) -> Purchase:
        return self._now.purchase

    def run(self) -> Result:
        try:
            return self._steps()
        except (AnswerUnreadable, WorkerRefused, WorkerUnreachable) as fault:
            if self._purchase.unsettled is None:
                raise
            raise exchange.unknown(self._purchase, fault.message) from fault
        finally:
            if self._follower is not None:
                self._follower.close()

    def _steps(self) -> Result:
        step: exchange.Step = Send()
        while True:
            match step:
                case Send(after):
                    reading = self._send(after)
                case Poll(after):
                    reading = self._poll(after)
                case Sign(asking):
                    self._sign(asking)
                    step = Send()
                    continue
                case Register():
                    self._now = replace(self._now, registered_again=True)
                    self._remote.register(self._contract)
                    step = Send()
                    continue
                case Finish(done):
                    return self._finish(done)
                case Stop(problem, final, other_input):
                    if final:
                        self._keep(replace(self._purchase, ending=Ending.FAILED))
                    elif other_input:
                        self._keep(replace(self._purchase, wants_input=True))
                    raise problem
            self._note(reading)
            step = exchange.decide(reading, self._now)

    def _send(self, after: float) -> Reading:
        self._seeker.sleep(after)
        payment = self._purchase.unsettled
        sent = (payment.signed.header, payment.signed.value) if payment else None
        body = (self._purchase.body or "").encode()
        self._seeker.tell("sent", {"paying": payment is not None})
        try:
            answer = self._remote.execute(self._contract["contract_id"], body, sent, live=self._seeker.live)
        except Dropped as dropped:
            return Unsure(dropped.why)
        self._etag = ""
        return readings.read(answer)

    def _poll(self, after: float) -> Reading:
        if self._seeker.live and self._follower is not None and not self._follower.broken:
            self._follower.until_turn(self._show)
        else:
            self._seeker.sleep(after)
        try:
            answer = self._remote.poll(self._contract["contract_id"], self._task_url, self._etag)
        except Dropped as dropped:
            return Unsure(dropped.why)
        if answer.status == 304 and self._seen is not None:
            return self._seen
        self._etag = answer.headers.get("etag", "")
        self._seen = readings.read(answer)
        return self._seen

    def _note(self, reading: Reading) -> None:
        """Counts answers in a row, and keeps what an answer has settled."""
        now, clock = self._now, self._seeker.now()
        if isinstance(reading, Unsure):
            self._unsure_since = self._unsure_since or clock
            over = clock - self._unsure_since > self._seeker.limits.patience_s
            self._now = replace(now, unsure=now.unsure + 1, patience_over=over)
            self._seeker.tell("unsure", {"why": reading.why, "paying": now.purchase.unsettled is not None})
            return
        self._unsure_since = None
        doubted = (
            isinstance(reading, Asked) and reading.refused is None and now.purchase.unsettled is not None
        )
        failed = isinstance(reading, Failed | Refused)
        self._now = replace(
            now,
            unsure=0,
            patience_over=False,
            doubts=now.doubts + 1 if doubted else 0,
            tries=now.tries + failed,
        )
        if isinstance(reading, Asked) and reading.refused is not None and now.purchase.unsettled is not None:
            self._keep(now.purchase.with_fate(Fate.REFUSED, reading.refused))
            self._seeker.tell("refused", {"reason": reading.refused})
        if isinstance(reading, Working):
            self._working(reading)
        if isinstance(reading, Failed):
            self._seeker.tell("failed", {"code": reading.code, "retryable": reading.retryable})

    def _working(self, reading: Working) -> None:
        url = self._remote.task_url(reading.body, reading.task_id)
        if url != self._task_url:
            self._task_url, self._etag = url, ""
            self._follower = self._remote.follow(self._contract["contract_id"], reading.task_id)
            self._keep(replace(self._purchase, task_id=reading.task_id))
        self._seeker.tell("working", {"phase": reading.body.get("phase"), "body": reading.body})

    def _show(self, event: Event) -> None:
        self._seeker.tell("event", {"kind": event.kind, "payload": event.payload})

    def _sign(self, asking: Asking) -> None:
        """Checks, signs, and writes down; only then may anything be sent."""
        seeker, purchase = self._seeker, self._purchase
        room = seeker.limits.most - purchase.exposed(int(seeker.now()))
        chosen = choose(asking.demands, seeker.agreed(self._contract, purchase.url, room))
        seeker.tell("asked", {"amount": chosen.demand.amount, "pay_to": chosen.demand.pay_to})
        signed = seeker.wallet.sign_payment(chosen.demand, chosen.network, int(seeker.now()))
        self._now = replace(self._now, signed_again=bool(purchase.payments), doubts=0)
        self._keep(purchase.with_payment(signed))
        seeker.tell("kept", {"ref": purchase.ref, "amount": signed.amount})

    def _keep(self, purchase: Purchase) -> None:
        self._now = replace(self._now, purchase=purchase)
        if purchase.payments:
            self._seeker.drawer.save(purchase)

    def _finish(self, done: Done) -> Result:
        # It stays open until its deliverables are in hand: whoever comes back for them must not pay again.
        self._keep(self._purchase.with_fate(Fate.SETTLED))
        self._seeker.tell("done", {"body": done.body})
        return result_of(self._purchase, done)
