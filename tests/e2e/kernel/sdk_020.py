"""An agent and a runner written with rebuno 0.2.0, as users write them. Runs in its own environment."""

import asyncio
import os
import sys

from rebuno.async_agent import AsyncBaseAgent
from rebuno.async_runner import AsyncBaseRunner
from rebuno.errors import PolicyError, ToolError


class TestAgent(AsyncBaseAgent):
    async def process(self, ctx):
        do = ctx.input["do"]
        if do == "local":
            return {"sum": await ctx.invoke_tool("add", {"a": 2, "b": 3})}
        if do == "tool-error":
            try:
                await ctx.invoke_tool("broken", {})
            except ToolError as error:
                return {"caught": str(error)}
        if do == "handler-error":
            raise ValueError("the handler is broken")
        if do == "denied":
            try:
                await ctx.invoke_tool("shell.run", {"command": "rm -rf /"})
            except PolicyError as error:
                return {"denied": str(error)}
        if do == "approval":
            return {"said": await ctx.invoke_tool("deploy.site", {"site": "example"})}
        if do == "approval-denied":
            try:
                await ctx.invoke_tool("deploy.site", {"site": "example"})
            except PolicyError as error:
                return {"denied": str(error)}
        if do == "approval-remote":
            return {"said": await ctx.invoke_tool("deploy.remote", {"site": "example"})}
        if do == "remote":
            return {"double": await ctx.invoke_tool("remote.double", {"n": 21})}
        if do == "shaky":
            return {"shaky": await ctx.invoke_tool("remote.shaky", {"n": 1})}
        if do == "parallel-local":
            calls = (ctx.invoke_tool("slow.add", {"a": n, "b": 1}) for n in range(5))
            return {"sums": await asyncio.gather(*calls)}
        if do == "parallel-remote":
            calls = (ctx.invoke_tool("remote.double", {"n": n}) for n in range(3))
            return {"doubles": await asyncio.gather(*calls)}
        if do == "remote-twice":
            first = await ctx.invoke_tool("remote.double", {"n": 1})
            return {"doubles": [first, await ctx.invoke_tool("remote.double", {"n": 2})]}
        if do == "gather":
            late = ctx.invoke_tool("late.add", {"a": 2, "b": 3})
            remote = ctx.invoke_tool("remote.double", {"n": 4})
            deployed = ctx.invoke_tool("deploy.site", {"site": "example"})
            return {"both": await asyncio.gather(deployed, late, remote)}
        if do == "gather-approvals":
            calls = (ctx.invoke_tool("deploy.site", {"site": site}) for site in ("one", "two"))
            return {"both": await asyncio.gather(*calls)}
        if do == "gather-fails":
            calls = (("deploy.site", {"site": "example"}), ("late.broken", {}))
            return await asyncio.gather(*(ctx.invoke_tool(*call) for call in calls))
        if do == "wait":
            return {"signal": await ctx.wait_signal("go")}
        if do == "think":
            await asyncio.sleep(ctx.input["seconds"])
            return {"thought": ctx.input["seconds"]}
        if do == "work":
            await ctx.invoke_tool("add", {"a": 1, "b": 1})
            await asyncio.sleep(ctx.input["seconds"])
            sum = await ctx.invoke_tool("add", {"a": 2, "b": 2})
            return {"sum": sum, "history": len(ctx.history)}
        raise ValueError(do)


async def add(a, b):
    return a + b


async def slow_add(a, b):
    await asyncio.sleep(0.3)
    return a + b


async def late_add(a, b):
    await asyncio.sleep(0.5)
    return a + b


async def late_broken():
    await asyncio.sleep(0.5)
    await broken()


async def broken():
    raise RuntimeError("the tool is broken")


async def shell(command):
    return command


async def deploy(site):
    return f"deployed {site}"


class TestRunner(AsyncBaseRunner):
    attempts = {}

    async def execute(self, tool_id, arguments):
        if tool_id == "remote.double":
            await asyncio.sleep(0.1)
            return 2 * arguments["n"]
        if tool_id == "deploy.remote":
            return f"deployed {arguments['site']} by a runner"
        n = arguments["n"]
        self.attempts[n] = self.attempts.get(n, 0) + 1
        if self.attempts[n] < 3:
            error = RuntimeError("try again")
            error.retryable = True  # type: ignore[attr-defined]
            raise error
        return self.attempts[n]


if __name__ == "__main__":
    role, name = sys.argv[1:3]
    url, key = os.environ["REBUNO_URL"], os.environ["REBUNO_API_KEY"]
    pauses = {"reconnect_delay": 0.2, "max_reconnect_delay": 0.5}
    if role == "agent":
        agent = TestAgent(name, url, key, **pauses)
        for id, function in {
            "add": add,
            "slow.add": slow_add,
            "broken": broken,
            "late.add": late_add,
            "late.broken": late_broken,
            "shell.run": shell,
            "deploy.site": deploy,
        }.items():
            agent.tool(id)(function)
        asyncio.run(agent.run())
    else:
        tools = ["remote.double", "remote.shaky", "deploy.remote"]
        asyncio.run(TestRunner(name, url, tools, key, **pauses).run())
