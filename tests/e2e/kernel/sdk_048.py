"""An agent and a runner written with rebuno 0.4.8, as users write them. Runs in its own environment."""

import asyncio
import sys
import time

from rebuno import Agent, Runner, execution, tool
from rebuno.errors import PolicyError, ToolError


@tool("add")
async def add(a: int, b: int) -> int:
    return a + b


@tool("slow.add")
async def slow_add(a: int, b: int) -> int:
    await asyncio.sleep(0.3)
    return a + b


@tool("broken")
async def broken() -> None:
    raise RuntimeError("the tool is broken")


@tool("shell.run")
async def shell(command: str) -> str:
    return command


@tool("deploy.site")
async def deploy(site: str) -> str:
    return f"deployed {site}"


@tool("remote.double", remote=True)
async def double(n: int) -> int: ...


@tool("remote.shaky", remote=True)
async def shaky(n: int) -> int: ...


@tool("deploy.remote", remote=True)
async def deploy_remote(site: str) -> str: ...


async def late_add(**numbers: int) -> int:
    await asyncio.sleep(0.5)
    return await slow_add(**numbers)


async def late_broken() -> None:
    await asyncio.sleep(0.5)
    await broken()


async def handle(do: str, seconds: float = 0.0):
    if do == "local":
        return {"sum": await add(a=2, b=3)}
    if do == "tool-error":
        try:
            await broken()
        except ToolError as error:
            return {"caught": str(error)}
    if do == "handler-error":
        raise ValueError("the handler is broken")
    if do == "denied":
        try:
            await shell(command="rm -rf /")
        except PolicyError as error:
            return {"denied": str(error)}
    if do == "approval":
        return {"said": await deploy(site="example")}
    if do == "approval-denied":
        try:
            await deploy(site="example")
        except PolicyError as error:
            return {"denied": str(error)}
    if do == "approval-remote":
        return {"said": await deploy_remote(site="example")}
    if do == "remote":
        return {"double": await double(n=21)}
    if do == "shaky":
        return {"shaky": await shaky(n=1)}
    if do == "parallel-local":
        return {"sums": await asyncio.gather(*(slow_add(a=n, b=1) for n in range(5)))}
    if do == "parallel-remote":
        return {"doubles": await asyncio.gather(*(double(n=n) for n in range(3)))}
    if do == "remote-twice":
        return {"doubles": [await double(n=1), await double(n=2)]}
    if do == "gather":
        return {"both": await asyncio.gather(deploy(site="example"), late_add(a=2, b=3), double(n=4))}
    if do == "gather-approvals":
        return {"both": await asyncio.gather(deploy(site="one"), deploy(site="two"))}
    if do == "gather-fails":
        return await asyncio.gather(deploy(site="example"), late_broken())
    if do == "wait":
        return {"signal": await execution.wait_signal("go")}
    if do == "think":
        await asyncio.sleep(seconds)
        return {"thought": seconds}
    if do == "work":
        await add(a=1, b=1)
        await asyncio.sleep(seconds)
        return {"sum": await add(a=2, b=2), "history": len(execution.history)}
    raise ValueError(do)


attempts = {}


@tool("remote.double")
async def run_double(n: int) -> int:
    await asyncio.sleep(0.1)
    return 2 * n


@tool("remote.shaky")
async def run_shaky(n: int) -> int:
    attempts[n] = attempts.get(n, 0) + 1
    if attempts[n] < 3:
        error = RuntimeError("try again")
        error.retryable = True  # type: ignore[attr-defined]
        raise error
    return attempts[n]


@tool("deploy.remote")
async def run_deploy(site: str) -> str:
    return f"deployed {site} by a runner"


if __name__ == "__main__":
    role, name = sys.argv[1:3]
    if role == "agent":
        Agent(name, reconnect_delay=0.2, max_reconnect_delay=0.5).run(handle)
    else:
        tools = [run_double, run_shaky, run_deploy]
        Runner(name, tools=tools, reconnect_delay=0.2, max_reconnect_delay=0.5).run()
    time.sleep(0)
