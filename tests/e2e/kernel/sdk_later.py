"""The first requests of SDKs from 0.5 on, as a client and as an agent. Runs in its own environment."""

import asyncio
import json
import os

from rebuno import Client
from rebuno._kernel import KernelClient

try:
    import httpx2 as httpx
except ImportError:
    import httpx


async def said(call) -> str:
    try:
        await call
    except Exception as error:
        return str(error)
    return "no error"


async def main() -> None:
    execution = "0192f0c0-0000-7000-8000-000000000000"
    async with Client() as client, httpx.AsyncClient(base_url=os.environ["REBUNO_URL"]) as http:
        agent = KernelClient(agent_id="a", secret="secret", http=http)
        print(json.dumps([await said(client.list_approvals()), await said(agent.get_execution(execution))]))


asyncio.run(main())
