"""A tool that waits for a person: nothing is mailed before the operator approves it.

`examples/policy.yaml` says which tool needs approval:

    PYTHONPATH=examples WORKER_AGENTS=newsletter POLICY=examples/policy.yaml make run

In a second terminal. It stops at the tool and says how to approve it, which is done in a third:

    .venv/bin/python -m worker run newsletter --input '{"to": "readers@example.com", "news": ["We moved."]}'
"""

from __future__ import annotations

from worker import Failed, Job, ToolDenied, agent, tool


@tool("mail.send")
def send(to: str, text: str) -> str:
    """Would send a mail; this one only says so."""
    return f"{len(text)} characters to {to}"


@agent(
    "newsletter",
    price="0.50",
    example_input={"to": "readers@example.com", "news": ["We moved.", "We hire."]},
)
def newsletter(job: Job) -> dict[str, str]:
    """Writes a newsletter and mails it, once a person has read and approved it."""
    text = "News:\n" + "\n".join(f"- {each}" for each in job.input["news"])
    # While it waits, no process is kept busy. The function runs again with the decision, even days later.
    try:
        sent = job.tool("mail.send", to=job.input["to"], text=text)
    except ToolDenied:
        raise Failed("NOT_APPROVED", "the newsletter was not approved") from None
    return {"sent": str(sent)}
