"""Buys once with a published Python payer: reads {url, body} from stdin, prints the response.

Runs in an environment with the payers' own packages.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any


async def by_mcp_tool(url: str, body: str) -> dict[str, Any]:
    """x402-mcp as an agent uses it: the server as a child process, first the price, then the purchase."""
    from mcp import ClientSession, StdioServerParameters  # type: ignore[import-not-found]
    from mcp.client.stdio import stdio_client  # type: ignore[import-not-found]

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "x402_mcp.mcp_server"],
        env={**os.environ, "EVM_PRIVATE_KEY": os.environ["SEEKER_KEY"]},
    )
    request = {"url": url, "method": "POST", "headers": {"Content-Type": "application/json"}, "body": body}
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        priced = await session.call_tool("x402_fetch", request)
        bought = await session.call_tool("x402_fetch", {**request, "confirm_payment": True})
    price, answer = (json.loads(each.content[0].text) for each in (priced, bought))
    return {"price": price["human_readable"], "status": answer["status"], "body": json.loads(answer["body"])}


def by_sdk(url: str, body: str) -> dict[str, Any]:
    """uvd-x402-sdk's fetch. The package ships only main networks, so register the test network."""
    from uvd_x402_sdk import X402Client  # type: ignore[import-not-found]
    from uvd_x402_sdk.networks.base import NetworkConfig, NetworkType, register_network  # type: ignore[import-not-found]

    register_network(
        NetworkConfig(
            name="base-sepolia",
            display_name="Base Sepolia",
            chain_id=84532,
            network_type=NetworkType.EVM,
            rpc_url="http://127.0.0.1:1",
            usdc_address="0x036CbD53842c5426634e7929541eC2318f3dCF7e",
            usdc_decimals=6,
            usdc_domain_name="USDC",
            usdc_domain_version="2",
        )
    )
    client = X402Client(recipient_address="0x" + "11" * 20)
    client.connect_with_private_key(os.environ["SEEKER_KEY"], chain_name="base-sepolia")
    answer = client.fetch(
        url,
        method="POST",
        content=body,
        headers={"Content-Type": "application/json"},
        max_amount="0.05",
        # Its default of one hour exceeds the door's limit.
        valid_duration=1500,
        timeout=30,
    )
    return {"status": answer.status_code, "body": answer.json()}


def by_openai_client(url: str, body: str) -> dict[str, Any]:
    """x402-openai, used like the official OpenAI client: one completion whole, one streamed."""
    from x402_openai import X402OpenAI  # type: ignore[import-not-found]
    from x402_openai.wallets import EvmWallet  # type: ignore[import-not-found]

    client = X402OpenAI(base_url=url, wallet=EvmWallet(private_key=os.environ["SEEKER_KEY"]))
    whole = client.chat.completions.create(**json.loads(body))
    pieces = list(client.chat.completions.create(**json.loads(body), stream=True))
    return {
        "whole": whole.choices[0].message.content,
        "streamed": "".join(piece.choices[0].delta.content or "" for piece in pieces),
        "pieces": len(pieces),
        "finish": pieces[-1].choices[0].finish_reason,
        "tasks": [whole.task_id, pieces[0].task_id],
    }


def by_tool(url: str, body: str) -> dict[str, Any]:
    return asyncio.run(by_mcp_tool(url, body))


asked = json.load(sys.stdin)
buy = {"x402-mcp": by_tool, "uvd-x402-sdk": by_sdk, "x402-openai": by_openai_client}[sys.argv[1]]
print(json.dumps(buy(asked["url"], json.dumps(asked["body"]))))
