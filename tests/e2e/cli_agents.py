"""Agents that wait for people, for tests of the command line."""

from __future__ import annotations

from typing import Any

from worker import ToolDenied, agent, tool


@agent("patient", inline=True)
def patient(job: Any) -> dict[str, Any]:
    """Waits for a signal."""
    job.progress(0.5, "half")
    return {"answer": job.wait("go ahead")}


@tool("deploy.site")
def deploy_site(site: str) -> str:
    return f"deployed {site}"


@agent("deployer", inline=True, price="0.20", example_input={"site": "shop"})
def deployer(job: Any) -> dict[str, Any]:
    """Calls a tool that requires approval."""
    try:
        return {"done": job.tool("deploy.site", site=job.input.get("site", "shop"))}
    except ToolDenied as denied:
        return {"denied": denied.reason}


@agent("echo", inline=True)
def echo(job: Any) -> Any:
    return job.input


@agent("broken", inline=True, attempts=1)
def broken(job: Any) -> None:
    raise KeyError("the reason")
