"""One run of a purchase under a contract: stores each step and does what `next_step` decides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from worker.contracts.terms import BEFORE_WORK
from worker.seeker import answers, next_step
from worker.seeker.answers import (
    LONGEST_PAUSE,
    Completed,
    FailedTask,
    InProgress,
    NoClearAnswer,
    PaymentAsked,
    Reading,
    RequestRefused,
)
from worker.seeker.checks import choose
from worker.seeker.demand import PaymentDemands
from worker.seeker.http import ConnectionDropped, host_of
from worker.seeker.next_step import Finish, Poll, PurchaseSituation, Register, Send, Sign, Stop
from worker.seeker.problems import AnswerUnreadable, WorkerRefused, WorkerUnreachable
from worker.seeker.purchases import PaymentFate, Purchase, PurchaseEnding
from worker.seeker.result import Result, result_of
from worker.seeker.stream import StreamEvent, StreamFollower
from worker.seeker.worker_client import LIVE_SECONDS, WorkerClient

if TYPE_CHECKING:
    from worker.seeker.client import Seeker


class PurchaseRun:
    """Takes one step after another until there is a result or nothing more can be done."""

    def __init__(self, seeker: Seeker, purchase: Purchase, again: bool) -> None:
        self._seeker = seeker
        self._contract = purchase.signed_contract
        self._remote = WorkerClient(seeker.http, purchase.url)
        self._now = PurchaseSituation(purchase, asked_again=again)
        self._unsure_since: float | None = None
        self._task_url = self._etag = ""
        self._follower: StreamFollower | None = None
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
            raise next_step.unknown(self._purchase, fault.message) from fault
        finally:
            if self._follower is not None:
                self._follower.close()

    def _steps(self) -> Result:
        step: next_step.Step = Send()
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
                        self._keep(replace(self._purchase, ending=PurchaseEnding.FAILED))
                    elif other_input:
                        self._keep(replace(self._purchase, wants_input=True))
                    raise problem
            self._note(reading)
            step = next_step.decide(reading, self._now)

    def _send(self, after: float) -> Reading:
        self._seeker.sleep(after)
        payment = self._purchase.unsettled
        sent = (payment.signed.header, payment.signed.value) if payment else None
        body = (self._purchase.body or "").encode()
        self._seeker.tell("sent", {"paying": payment is not None})
        try:
            answer = self._remote.execute(self._contract["contract_id"], body, sent, wait_s=self._wait())
        except ConnectionDropped as dropped:
            return NoClearAnswer(dropped.why)
        self._etag = ""
        return answers.read(answer)

    def _wait(self) -> int | None:
        """How long to wait for a response: work that is paid in advance can be watched from the start."""
        if not self._seeker.live:
            return None
        return 0 if self._contract["terms"].get("settlement") == BEFORE_WORK else LIVE_SECONDS

    def _poll(self, after: float) -> Reading:
        if self._seeker.live and self._follower is not None and not self._follower.broken:
            self._follower.until_turn(self._show)
        else:
            self._seeker.sleep(after)
        try:
            answer = self._remote.poll(self._contract["contract_id"], self._task_url, self._etag)
        except ConnectionDropped as dropped:
            return NoClearAnswer(dropped.why)
        if answer.status == 304 and self._seen is not None:
            return self._seen
        self._etag = answer.headers.get("etag", "")
        self._seen = answers.read(answer)
        return self._seen

    def _tell_unsure(self, reading: NoClearAnswer) -> None:
        """Print why it retries: the worker's own reason, if it gave one."""
        facts = {"why": reading.why, "paying": self._now.purchase.unsettled is not None}
        if reading.message and reading.retry_after is not None:
            wait = min(reading.retry_after, LONGEST_PAUSE)
            self._seeker.tell("busy", {**facts, "message": reading.message, "seconds": f"{wait:g}"})
        else:
            self._seeker.tell("unsure", facts)

    def _note(self, reading: Reading) -> None:
        """Count consecutive responses, and store what a response has settled."""
        now, clock = self._now, self._seeker.now()
        if isinstance(reading, NoClearAnswer):
            self._unsure_since = self._unsure_since or clock
            over = clock - self._unsure_since > self._seeker.limits.patience_s
            self._now = replace(now, unsure=now.unsure + 1, patience_over=over)
            self._tell_unsure(reading)
            return
        self._unsure_since = None
        doubted = (
            isinstance(reading, PaymentAsked)
            and reading.refused is None
            and now.purchase.unsettled is not None
        )
        failed = isinstance(reading, FailedTask | RequestRefused)
        self._now = replace(
            now,
            unsure=0,
            patience_over=False,
            doubts=now.doubts + 1 if doubted else 0,
            tries=now.tries + failed,
        )
        if (
            isinstance(reading, PaymentAsked)
            and reading.refused is not None
            and now.purchase.unsettled is not None
        ):
            self._keep(now.purchase.with_fate(PaymentFate.REFUSED, reading.refused))
            self._seeker.tell("refused", {"reason": reading.refused})
        if isinstance(reading, InProgress):
            self._working(reading)
        if isinstance(reading, FailedTask):
            self._seeker.tell("failed", {"code": reading.code, "retryable": reading.retryable})

    def _working(self, reading: InProgress) -> None:
        url = self._remote.task_url(reading.body, reading.task_id)
        if url != self._task_url:
            self._task_url, self._etag = url, ""
            self._follower = self._remote.follow(self._contract["contract_id"], reading.task_id)
            self._keep(replace(self._purchase, task_id=reading.task_id))
        self._seeker.tell("working", {"phase": reading.body.get("phase"), "body": reading.body})

    def _show(self, event: StreamEvent) -> None:
        self._seeker.tell("event", {"kind": event.kind, "payload": event.payload})

    def _sign(self, asking: PaymentDemands) -> None:
        """Check, sign and store; only then may anything be sent."""
        seeker, purchase = self._seeker, self._purchase
        room = seeker.limits.most - purchase.exposed(int(seeker.now()))
        chosen = choose(asking.demands, seeker.agreed(self._contract, purchase.url, room))
        seeker.tell("asked", {"amount": chosen.demand.amount, "pay_to": chosen.demand.pay_to})
        seeker.approve(chosen.demand.amount, host_of(purchase.url), purchase.ref)
        signed = seeker.wallet.sign_payment(chosen.demand, chosen.network, int(seeker.now()))
        self._now = replace(self._now, signed_again=bool(purchase.payments), doubts=0)
        self._keep(purchase.with_payment(signed))
        seeker.tell("kept", {"ref": purchase.ref, "amount": signed.amount})

    def _keep(self, purchase: Purchase) -> None:
        self._now = replace(self._now, purchase=purchase)
        if purchase.payments:
            self._seeker.purchases.save(purchase)

    def _finish(self, done: Completed) -> Result:
        # Stays open until the deliverables are saved: fetching them later must not cost a second payment.
        self._keep(self._purchase.with_fate(PaymentFate.SETTLED))
        self._seeker.tell("done", {"body": done.body})
        return result_of(self._purchase, done, self._remote.signing_keys)
