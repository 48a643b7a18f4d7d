"""Hash fields of the data model: name → content. Times are in us of the store's clock.

A word in braces is a placeholder: `{n} state` is one field per payment.
"""

from __future__ import annotations

Fields = tuple[tuple[str, str], ...]

RECORD: Fields = (
    ("id", "the execution's id"),
    ("agent", "who does the work"),
    ("door", "which door it came through"),
    ("lane", "express, queue or remote"),
    ("state", "pending, running, blocked, completed, failed or cancelled"),
    ("phase", "where it stands with its money: offered, verifying, working, settling, payment_due or done"),
    ("attempt", "tries used up"),
    ("attempts", "tries allowed"),
    ("fence", "grows with every lease granted; writes about work carry it"),
    ("lease", "until when the holder of the fence may write; 0 when nobody holds it"),
    ("session", "the session of the current or last run"),
    ("worker", "the process or consumer of the current or last run"),
    ("epoch", "the connection of the remote agent that runs it"),
    ("told", "the epoch that was told to let go of its former run"),
    ("created", "when it was created"),
    ("updated", "when it last changed"),
    ("due", "a pending execution is not started before"),
    ("ends_by", "when it ends at the latest"),
    ("sla_by", "when the contract's promised latency is broken"),
    ("latency", "the promised latency"),
    ("run_limit", "how long one run may take"),
    ("run_until", "when the current run ends at the latest"),
    ("started", "when the current or last run began"),
    ("first_started", "when the first run began"),
    ("verified", "when the first payment was verified"),
    ("sealed", "when the result was sealed"),
    ("sealed_by", "the fence or session whose result counts"),
    ("ended", "when it ended"),
    ("settle_margin", "time kept for the settlement after a run"),
    ("digest", "of the request body, in canonical form"),
    ("input", "JSON, or empty where `input_ref` names a file"),
    ("input_ref", "JSON: key, size and sha256 of the input's file"),
    ("context", "JSON: what the door told the agent beside the input"),
    ("labels", "JSON object; absent where `door` and `contract` are the labels"),
    ("output", "JSON: what the agent returned"),
    ("result", "JSON: what was delivered"),
    ("error", "JSON: why it failed"),
    ("terminal", "payload of the terminal event that the settlement will append"),
    ("contract", "reference of the contract that bought it"),
    ("contract_created", "when that contract was made"),
    ("asker", "channel of the process whose request claimed it, until it ends"),
    ("version", "version of the contract form"),
    ("hooks", "JSON: webhooks to notify"),
    ("scope", "of the idempotency key"),
    ("key", "the idempotency key"),
    ("parked", "why it waits for its seeker: retry or input; empty when it does not"),
    ("resumed", "1 when the next run goes on after a wait"),
    ("blocked_on", "what a blocked execution waits for: signal or approval"),
    ("ref", "the signal's type or the step that it waits for"),
    ("left", "time to run that was left when it was blocked"),
    ("wait_key", "the local wait that blocked it"),
    ("wait_until", "when that wait gives up"),
    ("wait_expired", "1 when it gave up"),
    ("progress", "0 to 1"),
    ("message", "what goes with the progress"),
    ("said", "bytes of streamed output in the current run"),
    ("marks", "number of the last write within the fence"),
    ("write", "the last write that `append` made, by which a repeated one is recognised"),
    ("log_bytes", "size of the event log"),
    (
        "body",
        "how an identical input is recognised: short digest of those of its bytes and of its canonical form",
    ),
    ("before_work", "1 when the payment settles before the work"),
    ("retries", "free retries that the contract allows"),
    ("retries_used", "how many of them the seeker was offered"),
    ("inputs_used", "how often a corrected input was asked for"),
    ("uncharged", "the fence of the last run that was counted as uncharged"),
    ("unclaimed", "until when a resumed remote execution may run without a session"),
)

STEPS: Fields = (
    ("count", "steps so far"),
    ("open", "ids of steps without an outcome, separated by spaces"),
    ("cut", "ids of steps that were cancelled with their run"),
    ("jobs", "1 when a runner was ever asked"),
    ("key {key}", "the step that a call's key names"),
    ("intent {fence} {key}", "digest of an intent, then the answer it got"),
    ("denied {digest}", "how often the same call was denied"),
    ("signals {type}", "sequences of the signals of a type, separated by spaces"),
    ("signal {sequence}", "a payload too long for its event"),
    ("took {type}", "how many signals of a type a local function has used"),
    ("took {fence} {type}", "the same for a run of a remote agent"),
    ("wait {key}", "sequence of the signal that ended a local wait"),
    ("wait-type {key}", "the type of signal that a local wait is for"),
    ("approved {digest}", "approvals of the same call that no run has used yet"),
    ("once:{name}", "JSON: a value that `once` stored"),
    ("file:{name}", "JSON: a file that the job wrote"),
    ("overflow", "JSON: from which byte on the log could not take the streamed text"),
    ("cause:{fence}", "JSON: why the run under this fence failed, for the author alone"),
    ("{step} status", "pending, succeeded, failed, timed_out or cancelled"),
    ("{step} tool", "the tool's name"),
    ("{step} digest", "of the arguments"),
    ("{step} args", "arguments as stored, for a runner"),
    ("{step} attempt", "tries used up"),
    ("{step} attempts", "tries allowed"),
    ("{step} timeout", "of one try"),
    ("{step} created", "when it was created"),
    ("{step} fence", "the run that works on it; `approved` until one does"),
    ("{step} value", "JSON: result or error"),
    ("{step} remote", "1 when a remote agent called the tool"),
    ("{step} runner", "JSON: who runs the job"),
    ("{step} job", "id of the job"),
    ("{step} past", "ids of its former jobs"),
    ("{step} stage", "where the job stands with its runner: dispatched or running"),
    ("{step} epoch", "the runner's connection"),
    ("{step} losses", "how often its runner was lost"),
    ("{step} approval", "granted or denied"),
    ("{step} kept", "what an approval of the same call is kept under"),
    ("{step} answer", "the response to the call"),
    ("{step} answered", "how the job ended, for repeated results"),
)

# Each leg is of kind refund or fee.
LEG: Fields = (
    ("state", "due, settling, unknown, settled or refused"),
    ("amount", "atomic units"),
    ("reason", "why a refund is owed"),
    ("ordinal", "how many refunds of the payment, or fees of the wallet, came before"),
    ("payload", "JSON: the signed authorization, as sent to the facilitator"),
    ("requirements", "JSON: what it pays for, as sent to the facilitator"),
    ("valid_before", "seconds: when the authorization ends"),
    ("lease", "until when one caller may work on it"),
    ("token", "that caller"),
    ("calls", "settle calls so far"),
    ("failures", "calls and looks at the chain that brought nothing"),
    ("unknown", "1 after a call without a certain answer"),
    ("cause", "why its outcome is unknown"),
    ("hash", "a transaction that was named before the outcome was known"),
    ("code", "why it was refused"),
    ("tx", "the transaction"),
    ("how", "how the settlement is known"),
    ("receipt", "JSON: the signed refund receipt"),
    ("settled", "when we learnt that it settled"),
)

MONEY: Fields = (
    ("contract", "reference of the contract; absent for gathered fees"),
    ("mode", "after_work or before_work"),
    ("fee", "the platform's share in atomic units"),
    ("fee_wallet", "who gets it"),
    ("count", "how many payments there were"),
    ("current", "number of the payment that counts now"),
    ("unpaid", "its contract's entry in the quota of unpaid contracts, until a payment is verified"),
    ("paid", "number of the payment that settled"),
    ("{n} state", "claimed, verified, settling, unknown, settled, refused or released"),
    ("{n} key", "the payment's key: network, asset, payer, nonce"),
    ("{n} payer", "wallet"),
    ("{n} amount", "atomic units"),
    ("{n} payload", "JSON: what is sent to the facilitator; packed once it is settled"),
    ("{n} requirements", "JSON: our offer, as sent to the facilitator; packed too"),
    ("{n} valid_before", "seconds: when the authorization ends"),
    ("{n} claimed", "when it was claimed"),
    ("{n} verified", "when it was verified last"),
    ("{n} rechecked", "when its verification was found too old for the work to begin"),
    ("{n} settled", "when we learnt that it settled"),
    ("{n} tx", "the transaction"),
    ("{n} hash", "a transaction that was named before the outcome was known"),
    ("{n} how", "how the settlement is known: facilitator, chain, presumed or operator"),
    ("{n} response", "PAYMENT-RESPONSE; packed too"),
    ("{n} code", "why it was refused"),
    ("{n} cause", "why its outcome is unknown"),
    ("{n} unknown", "1 after a call without a certain answer"),
    ("{n} refusal", "the code of a refusal that waits for a look at the chain"),
    ("{n} refused_at", "when the facilitator refused"),
    ("{n} looks", "how often the chain was looked at because of it"),
    ("{n} proof", "what the audit found: proven or unproven"),
    ("{n} sent_again", "a transaction that the facilitator named when the audit sent the payment again"),
    ("{n} {question} tries", "how often the facilitator was asked to verify without an answer"),
    ("{n} maybe", "1 when such a call may have moved the money"),
    ("{n} calls", "settle calls so far"),
    ("{n} lease", "until when one caller may make a settle call"),
    ("{n} token", "that caller"),
    ("{n} waits", "1 when its request waited for the work where it was claimed"),
    ("{n} again", "when the call is made again"),
    ("{n} hooks", "webhooks that came with the payment"),
    ("{n} refunded", "atomic units that went back"),
    ("{n} fee fixed", "when the collected fees became this leg"),
    ("{n} refund {ordinal} {fact}", "amount, tx, how and receipt of an earlier refund of the payment"),
    *((f"{{n}} {{kind}} {name}", holds) for name, holds in LEG),
)

CONTRACT: Fields = (
    ("document", "the contract as both parties signed it, or the terms of a plain purchase; may be packed"),
    ("hash", "its hash"),
    ("state", "signed"),
    ("created", "when it was made, by its own word"),
    ("registered", "when it was registered, or claimed by a plain purchase"),
    ("execution", "the execution that it bought"),
    ("found", "payload of a payment that only the chain shows"),
    ("found_key", "that payment's key"),
    ("found_tx", "its transaction"),
    ("drafted", "when we signed its draft"),
    ("unpaid", "its entry in the quota of unpaid contracts"),
)

UNPAID_BYTES: Fields = (
    ("wallet {wallet}", "bytes of a wallet's unpaid contracts"),
    ("new", "bytes of those of all wallets that had never paid"),
)


def _histogram(name: str, of: str, counted: str) -> Fields:
    """The fields of one histogram."""
    return (
        (f"{name} count {of}".rstrip(), counted),
        (f"{name} us {of}".rstrip(), "the time they took"),
        (f"{name} le {{us}} {of}".rstrip(), "how many took at most this long and longer than the next bound"),
    )


STATS: Fields = (
    ("worker_{metric}", "a counter of /metrics by the name of its sample"),
    ("rebuno_{metric}", "the same under the kernel's own names"),
    ("mean_us {agent}", "what a run of the agent takes, the latest weighing a fifth"),
    ("lane_us {lane}", "the same for all executions of a lane"),
    ("step tools", "how many tools have a histogram of their own"),
    *_histogram("step", "{tool}", "calls of a tool that succeeded"),
    *_histogram("request", "{endpoint}", "requests answered"),
    *_histogram("policy", "", "decisions about tool calls"),
    *_histogram("wait", "{lane}", "waits of executions until they were taken from a lane"),
    *_histogram("run", "{agent}", "runs of an agent"),
)

CATALOGS: Fields = (("{tree}", "`since JSON`: when it began, and a list of its capabilities"),)

DEFERRED_CALL: Fields = (
    ("kind", "which of the clock's handlers does it"),
    ("who", "who asked for it"),
    ("subject", "what it is about, for the operator's journal"),
    ("argument {name}", "an argument of the handler"),
)

SUMS: Fields = (
    ("claimed", "all that was ever claimed"),
    ("open", "claimed and not ended"),
    ("settled", ""),
    ("refused", ""),
    ("released", ""),
    ("refunds_due", ""),
    ("refunds_paid", ""),
    ("fees_due", ""),
    ("fees_paid", ""),
)

WALLETS: Fields = (
    ("open {wallet}", "payments of a wallet that have not ended"),
    ("paid {wallet}", "what a wallet has paid, minus refunds"),
    ("runs {wallet}", "when a wallet's uncharged runs of the last hour ended, oldest first"),
    ("unproven", "`time:wallet`: the same of all wallets that have paid nothing"),
    ("parked {wallet}", "how many of its open payments wait for a free retry"),
    ("fee {wallet}", "platform fees that gather for a wallet"),
    ("newcomers", "`end:id` of open payments that nothing their wallet has paid vouches for"),
)

CONNECTION: Fields = (
    ("kind", "agent or runner"),
    ("name", "of the agent or runner"),
    ("consumer", "which of its processes"),
    ("tools", "JSON: what a runner offers"),
)

LIFE: Fields = (
    ("life", "run id and replication id of the store's server"),
    ("life_before", "the same of the life that ended last"),
    ("began", "when this life was first seen"),
    ("hold", "contracts signed before this wait for the comparison; 0: none does"),
    ("hold_before", "the hold that was there when this life began"),
    ("pending", "1 while it may still turn out that nothing was lost"),
    ("silent", "processes that have not yet said that they find all they remember"),
    ("writes", "writes that must not be forgotten, so far"),
    ("writes_before", "how many there were when this life began"),
    ("fences", "writes made only to be on a replica"),
    ("replica_at", "when a replica was last seen"),
    ("done", "the life for which the comparison was last brought to its end"),
    ("at", "when that was"),
    ("to", "how far it reached, on the chain's clock"),
    ("block", "the block that was compared last"),
    ("lease", "until when one clock compares"),
    ("wanted", "1 when somebody waits for a comparison"),
)

LISTINGS: Fields = (
    ("{capability} status", "success, processing or rejected, as the facilitator said last"),
    ("{capability} reason", "why it was rejected"),
    ("{capability} at", "when it said so"),
    ("{capability} settled", "when the capability was last paid for, to within ten minutes"),
)

HOOKS: Fields = (
    ("looked", "sequence up to which the log was searched for notices"),
    ("gone {hook}", "when a webhook answered that it is gone"),
    ("{notice} attempts", "attempts so far"),
    ("{notice} lines", "how many lines its journal has had"),
    ("{notice} line {number}", "`time result`: one attempt"),
    ("{notice} last", "the last of them"),
)

BUSY: Fields = (("{epoch}", "`deadline id step`: the job that the connection works on"),)

PARTED: Fields = (("{consumer}", "epoch of the connection"),)

TURNS: Fields = (("{name}", "the connection of an agent, or the offer of a tool, that had the last turn"),)

SCHEMAS: Fields = (("{runner}", "JSON: the tools that it published"),)

HELD: Fields = (("{id}", "session"),)

FAILING_HOSTS: Fields = (("{host}", "`since last failures`"),)

TRANSACTIONS: Fields = (("{transaction}", "`id number` of the payment"),)

FOUND_ABOUT: Fields = (
    ("{transfer}", "`transaction index block time payer amount nonce outcome`, by transaction and log index"),
)

SWARM_DAY: Fields = (
    ("day", "days since 1970"),
    ("used", "executions of that day"),
)
