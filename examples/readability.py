"""A function for sale: how easy a text is to read.

Start a worker that sells it:

    PYTHONPATH=examples WORKER_AGENTS=readability make run

In a second terminal, run it as the operator, then hire it for test dollars:

    export URL=http://127.0.0.1:8000 KEY=var/local.json
    .venv/bin/python -m worker run readability --input '{"text": "Short words help. So do short lines."}'
    .venv/bin/python -m worker hire $URL readability --input '{"text": "Buy me."}' --key @$KEY --out var/hired
"""

from __future__ import annotations

import re

from worker import Job, agent

INPUT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "pattern": "[A-Za-z]", "maxLength": 100_000}},
}


@agent(
    "readability",
    price="0.05",
    inline=True,
    input_schema=INPUT,
    example_input={"text": "Short words help. So do short lines."},
)
def readability(job: Job) -> dict[str, float]:
    """Words in a sentence, letters in a word, and the hardest words of an English text as a file."""
    text = job.input["text"]
    words = re.findall(r"[A-Za-z']+", text)
    sentences = [part for part in re.split(r"[.!?]+", text) if part.strip()]
    job.progress(0.5, f"{len(words)} words")
    hardest = sorted(set(words), key=lambda word: (-len(word), word))[:10]
    job.file("hardest-words.txt", "\n".join(hardest), mime="text/plain")
    return {
        "words_per_sentence": round(len(words) / max(1, len(sentences)), 1),
        "letters_per_word": round(sum(map(len, words)) / len(words), 1),
    }
