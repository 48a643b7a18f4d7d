"""A remote agent: a program of its own, anywhere, that connects to a worker and does what is sold there.

The worker sells it as `examples/worker.toml` declares it, and knows it by its key:

    WORKER_CONFIG=examples/worker.toml AGENT_KEYS=agent:translator:key-for-this-laptop make run

In a second terminal, the agent, with the official SDK in an environment of its own:

    python3 -m venv translator && translator/bin/pip install 'rebuno<0.5'
    export REBUNO_URL=http://127.0.0.1:8000 REBUNO_API_KEY=key-for-this-laptop
    translator/bin/python examples/translator.py

In a third, run it as the operator, then hire it for test dollars:

    export URL=http://127.0.0.1:8000 KEY=var/local.json
    .venv/bin/python -m worker run translator --input '{"text": "good morning"}'
    .venv/bin/python -m worker hire $URL translator --input '{"text": "hello"}' --key @$KEY --out var/hired
"""

from __future__ import annotations

from rebuno import Agent, tool

FRENCH = {"good": "bon", "morning": "matin", "hello": "bonjour"}


# The worker decides by policy whether the agent may call a tool, and records the call and its result.
@tool("dictionary.look_up")
async def look_up(word: str) -> str:
    return FRENCH.get(word, word)


async def translate(text: str) -> dict[str, str]:
    return {"text": " ".join([await look_up(word=word) for word in text.lower().split()])}


if __name__ == "__main__":
    Agent("translator").run(translate)
