"""Finds keys of a contract that this worker does not know.

HIRE allows extra keys and signs them with the rest. The answer to a draft lists those without effect here. A
key that promises money in a way that we do not honour is refused, because its signer would rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Objects whose keys we know, by their path in the contract.
_KNOWN: Mapping[str, frozenset[str]] = {
    "": frozenset(
        {"version", "contract_id", "created_at", "parties", "task", "terms", "sla", "webhook", "$schema"}
    ),
    "parties": frozenset({"seeker", "worker"}),
    "parties.seeker": frozenset({"agent_id", "wallet"}),
    "parties.worker": frozenset({"agent_id", "wallet"}),
    "task": frozenset({"description", "requirements", "capability", "input_schema", "output_schema"}),
    "terms": frozenset({"price", "deadline", "payment_trigger", "settlement", "platform_fee"}),
    "terms.price": frozenset({"amount", "currency", "network"}),
    "terms.platform_fee": frozenset({"percentage", "wallet"}),
    "sla": frozenset({"max_latency_ms", "retry_policy", "refund_conditions"}),
}
# Sections that contain promises about money.
_ABOUT_MONEY = ("terms", "terms.price", "terms.platform_fee", "sla")
_MONEY = re.compile(
    r"amount|bonus|budget|cashback|charge|commission|compensat|cost|credit|currenc|deposit|discount|escrow|fee"
    r"|fine|installment|instalment|interest|milestone|money|payee|payment|payout|penalt|prepa|price|rate"
    r"|rebate|recipient|refund|retainer|reward|royalt|settle|split|stake|surcharge|tax|tip|token|usdc|wallet"
)
MOST_NAMED = 50


def unknown_keys(contract: Mapping[str, Any]) -> list[str]:
    """Paths of the keys that have no effect here, in the contract's order."""
    found: list[str] = []
    for path, known in _KNOWN.items():
        at = _at(contract, path)
        names = [
            name for name in at if name not in known and not (not path and name in ("signatures", "hash"))
        ]
        found += [f"{path}.{name}" if path else name for name in names]
    return found


def first_about_money(unknown: list[str]) -> str | None:
    """The first unknown key that is about money."""
    for path in unknown:
        inside = [where for where in _ABOUT_MONEY if path.startswith(f"{where}.")]
        if inside and _MONEY.search(path.removeprefix(f"{inside[-1]}.").lower()):
            return path
    return None


def _at(contract: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    found: Any = contract
    for name in path.split(".") if path else ():
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
