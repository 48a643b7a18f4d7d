"""What the selling pages show of a capability: price, measured time, examples, and how to hire it."""

from __future__ import annotations

import json
import mimetypes
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from worker.capabilities.declare import Capability
from worker.contracts.terms import BEFORE_WORK
from worker.engine.figures import Figures
from worker.hiring.discovery import PATH

_REFUND = {
    True: "You pay before the work begins; if it fails, the full price is refunded.",
    False: "You pay only after the work is done; failed work costs nothing.",
}


@dataclass(frozen=True, slots=True)
class Snippet:
    """One way to hire, ready to be copied."""

    id: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A file of an example."""

    name: str
    url: str
    image: bool


def card(capability: Capability, figures: Figures, settle: str, url: str, network: str) -> dict[str, Any]:
    """A capability as the pages show it. `url` is the worker's public address, `network` its CAIP-2 id."""
    return {
        "name": capability.name,
        "title": title_of(capability),
        "description": capability.description,
        "price": capability.price,
        "price_varies": capability.prices_input,
        "typical": _typical(figures.typical_us.get(capability.name)),
        "at_most": in_words(capability.max_latency_ms or int(capability.time_limit * 1000)),
        "refund": _REFUND[settle == BEFORE_WORK],
        "input": capability.example_input,
        "output": None if capability.example_files else capability.example_output,
        "files": [_file(capability, name) for name in capability.example_files],
        "snippets": snippets(capability, url, network),
        "streams": capability.stream,
    }


def title_of(capability: Capability) -> str:
    return capability.title or capability.name.replace("-", " ").capitalize()


def mime_of(name: str) -> str:
    """The type that a file of an example is served as."""
    return mimetypes.guess_type(name)[0] or "text/plain"


def in_words(ms: int) -> str:
    """A duration for people."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1000:.3g} s"
    return f"{ms / 60_000:.3g} min" if ms < 7_200_000 else f"{ms / 3_600_000:.3g} h"


def _typical(us: int | None) -> str:
    """The median run, without a precision that buckets do not have."""
    if us is None:
        return ""
    if us < 100_000:
        return "under 0.1 s"
    return f"about {in_words(us // 1000)}" if us >= 950_000 else f"about {us / 1e6:.1f} s"


def _file(capability: Capability, name: str) -> Picture:
    path = f"/c/{capability.name}/example/{quote(name)}"
    return Picture(name, path, mime_of(name).startswith("image/"))


def snippets(capability: Capability, url: str, network: str) -> list[Snippet]:
    """Each way to hire, with the capability's own example."""
    example = capability.example_input if capability.example_input is not None else {}
    body = json.dumps(example, ensure_ascii=False, separators=(", ", ": "))
    values = {
        "URL": url,
        "NETWORK": network,
        "ADDRESS": f"{url}{PATH}{capability.name}",
        "NAME": capability.name,
        "SHELL": shlex.quote(body),
        "PYTHON": repr(example),
        "JSON": body,
        "PRICE": capability.price,
    }
    return [
        Snippet(f"{capability.name}-{key}", label, _filled(text, values))
        for key, (label, text) in _SNIPPETS.items()
    ]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"<([A-Z]+)>", lambda found: values[found[1]], text).strip()


_SNIPPETS = {
    "curl": (
        "curl",
        """
# 1. Ask for the price: 402, with the offer in PAYMENT-REQUIRED
curl -i <ADDRESS> -H 'Content-Type: application/json' -d <SHELL>
# 2. Send the same request with the payment that an x402 client signed
curl <ADDRESS> -H 'Content-Type: application/json' -H "PAYMENT-SIGNATURE: $PAYMENT" -d <SHELL>
""",
    ),
    "python": (
        "Python",
        """
# pip install "x402[requests,evm]"
import eth_account, x402
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm.exact.register import register_exact_evm_client

wallet = eth_account.Account.from_key(open("wallet.key").read().strip())
session = x402_requests(register_exact_evm_client(x402.x402ClientSync(), wallet))
answer = session.post("<ADDRESS>", json=<PYTHON>)
print(answer.json())
""",
    ),
    "javascript": (
        "JavaScript",
        """
// npm install @x402/fetch @x402/evm viem
import { wrapFetchWithPaymentFromConfig } from "@x402/fetch";
import { ExactEvmScheme } from "@x402/evm";
import { privateKeyToAccount } from "viem/accounts";

const client = new ExactEvmScheme(privateKeyToAccount(process.env.WALLET_KEY));
const pay = wrapFetchWithPaymentFromConfig(fetch, { schemes: [{ network: "<NETWORK>", client }] });
const answer = await pay("<ADDRESS>", {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(<JSON>),
});
console.log(await answer.json());
""",
    ),
    "command": (
        "worker hire",
        """
worker hire <URL> <NAME> --input <SHELL> --key @wallet.key --max <PRICE> --out results
""",
    ),
    "contract": (
        "As a contract",
        """
# A signed contract adds a deadline, a latency, schemas of your own and free retries.
worker contract draft <URL> <NAME> --key @wallet.key --out draft.json
curl -s <URL>/contracts -H 'Content-Type: application/json' -d @draft.json -o offered.json
worker contract sign offered.json --key @wallet.key --out contract.json
curl -s -X PUT <URL>/contracts -H 'Content-Type: application/json' -d @contract.json -o known.json
ID=$(grep -o -m1 'ctr_[a-z0-9]*' contract.json); BODY=<SHELL>
curl -s <URL>/execute -H "X-Contract-ID: $ID" -H 'Content-Type: application/json' -d "$BODY" -D asked.txt
PAYMENT=$(worker contract pay contract.json --asked asked.txt --url <URL> --key @wallet.key)
curl -s <URL>/execute -H "X-Contract-ID: $ID" -H "PAYMENT-SIGNATURE: $PAYMENT" \\
  -H 'Content-Type: application/json' -d "$BODY"
""",
    ),
}
