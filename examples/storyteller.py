"""A language model behind an agent: a story, streamed while the model writes it.

It asks any endpoint that speaks the OpenAI chat API; the one here is Ollama's, on this machine:

    PYTHONPATH=examples WORKER_AGENTS=storyteller MODEL_URL=http://127.0.0.1:11434/v1 MODEL=llama3.2 make run

In a second terminal, watch it write:

    .venv/bin/python -m worker run storyteller --input '{"hero": "a lighthouse keeper"}'
"""

from __future__ import annotations

import json
import os
import urllib.request
import uuid
from collections.abc import Iterator

from worker import Failed, Job, Transient, agent

URL = os.environ.get("MODEL_URL", "http://127.0.0.1:11434/v1")
MODEL = os.environ.get("MODEL", "llama3.2")
KEY = os.environ.get("MODEL_KEY", "")


# A stream is paid for before the work. If the story breaks off, the price is refunded.
@agent(
    "storyteller", price="0.10", model=MODEL, example_input={"hero": "a lighthouse keeper"}, time_limit=120
)
def storyteller(job: Job) -> Iterator[str]:
    """A very short story about a hero of yours, streamed."""
    this_run, begun = uuid.uuid4().hex, False
    try:
        for text in written(f"Tell a story of 100 words about {job.input['hero']}."):
            # A model never writes the same story twice, so another run cannot go on where this one stopped.
            if not begun and job.once("storyteller", lambda: this_run) != this_run:
                raise Failed("BROKEN_OFF", "the story broke off; ask for another one")
            begun = True
            yield text
    except OSError:
        if begun:
            raise Failed("BROKEN_OFF", "the story broke off; ask for another one") from None
        raise Transient("the model is away") from None


def written(prompt: str) -> Iterator[str]:
    """The pieces of the model's answer, as they arrive."""
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": prompt}]}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{URL}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if data == "[DONE]":
                return
            for choice in json.loads(data)["choices"] if data.startswith("{") else ():
                if text := choice["delta"].get("content"):
                    yield text
