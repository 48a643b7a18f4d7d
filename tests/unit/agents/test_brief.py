"""The brief agent: choosing sentences, and serving contracts and the swarm."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.job import FakeJob, run
from worker.agents.shipped.brief import OUTPUT_SCHEMA, brief, read
from worker.agents.shipped.text.ranking import choose, keywords
from worker.agents.shipped.text.sentences import cut, facts, prose, split, words
from worker.errors import Failed, InvalidInput

REPORT = """
The harbour of Varde was closed for three weeks after the storm. Two cranes fell and the northern pier broke
in the middle. Dr. Lind, the harbour master, counts the damage at 4 million crowns. The cranes were insured,
but the pier was not. Fishing boats now land their catch in Esk, which costs them an hour each way. The town
council will vote on a loan in May. A loan of 3 million crowns would pay for a new pier. Without the loan
the pier stays closed until the next budget. Some residents would rather build a marina for tourists.
It rained again on Sunday.
"""
DEFAULT = {"sentences": 5, "reuse_exact": False}
SAMPLE_SCHEMA = {
    "properties": {
        "answer": {"type": "string"},
        "check_summary": {"type": "string"},
        "confidence": {"type": "number"},
    },
    "required": ["answer"],
    "type": "object",
}
SENTENCES = [sentence.text for sentence in split(REPORT)]


def ask(given: Any, **more: Any) -> Any:
    return run(brief, FakeJob(given, settings=more.pop("settings", DEFAULT), **more))


def test_default_output_is_answer_confidence_and_check_summary() -> None:
    """Without a schema the answer has three fields; its sentences are the text's own, in their order."""
    output = ask({"prompt": REPORT})
    jsonschema.validate(output, OUTPUT_SCHEMA)
    assert set(output) == {"answer", "confidence", "check_summary"}
    chosen = [s for s in SENTENCES if s in output["answer"]]
    assert len(chosen) == 5 and output["answer"] == " ".join(chosen)
    assert 0.05 <= output["confidence"] <= 0.95


def test_summary_keeps_what_matters() -> None:
    """The loan and the pier, which the text returns to, are in; the weather, mentioned once, is out."""
    answer = ask({"prompt": REPORT})["answer"]
    assert "pier" in answer and "loan" in answer
    assert "It rained again" not in answer


def test_profile_fast_is_shorter_and_less_sure() -> None:
    """The fast profile gives two sentences and, covering less, a lower confidence."""
    full, fast = ask({"prompt": REPORT}), ask({"prompt": REPORT}, settings={"sentences": 2}, profile="fast")
    assert len(split(fast["answer"])) == 2
    assert fast["confidence"] < full["confidence"]


def test_same_input_gives_the_same_answer() -> None:
    """Two runs agree to the byte, so that a retried swarm call cannot conflict with itself."""
    assert json.dumps(ask({"prompt": REPORT})) == json.dumps(ask({"prompt": REPORT}))


def test_short_prompt_beside_texts_is_a_question() -> None:
    """With documents in other inputs the prompt only steers: the answer comes from the documents."""
    output = ask(
        {"prompt": "Where do boats land their catch?", "doc": {"pages": [REPORT]}, "agent_id": "a-1"}
    )
    assert "Fishing boats now land their catch in Esk" in output["answer"]
    assert "Where do" not in output["answer"]


def test_instruction_before_a_text_is_not_summarised() -> None:
    """A leading "Summarise this" in the prompt is taken as the task and left out of the answer."""
    answer = ask({"prompt": f"Summarise the following report.\n\n{REPORT}"})["answer"]
    assert "Summarise" not in answer and "pier" in answer


def test_bare_instruction_is_answered_without_confidence() -> None:
    """A prompt with nothing to summarise is given back, and the agent does not pretend to be sure."""
    output = ask(
        {"prompt": "Summarise the risks in the attached proposal.", "document_ref": "https://x.y/z.pdf"}
    )
    assert output["answer"] == "Summarise the risks in the attached proposal."
    assert output["confidence"] <= 0.5


def test_confidence_grows_with_coverage() -> None:
    """More sentences cover more of the text, and only that raises the confidence."""
    values = [ask({"prompt": REPORT}, settings={"sentences": n})["confidence"] for n in (1, 3, 6, 10)]
    assert values == sorted(values) and values[0] < values[-1]


A2A = {
    "request_id": "req-1",
    "target_agent_id": "agent-9",
    "capability": "translate",
    "payload": {"order": 17},
    "auth_proof": None,
    "settlement": {"asset": "USDC"},
    "signature": "ed25519:abc",
    "protocol": "google_a2a",
}


def test_input_without_prompt_is_answered() -> None:
    """An A2A task has no prompt; what it states is said, in low confidence if it holds no prose."""
    output = ask(A2A, output_schema=SAMPLE_SCHEMA)
    jsonschema.validate(output, SAMPLE_SCHEMA)
    assert "translate" in output["answer"]
    text = {**A2A, "payload": {"text": REPORT}}
    assert "pier" in ask(text)["answer"]


@pytest.mark.parametrize(
    "empty", [None, {}, [], "", {"prompt": ""}, {"prompt": "\u0000 "}, {"a": [None, {}]}, 0.0]
)
def test_nothing_to_say_is_invalid_input(empty: Any) -> None:
    """Only an input without any word is refused, by the name of the prompt."""
    if empty == 0.0:
        assert ask(empty)["answer"] == "0.0"
        return
    with pytest.raises(InvalidInput) as caught:
        ask(empty)
    assert caught.value.details["field"] == "prompt"


def test_prompt_of_another_type_is_not_fatal() -> None:
    """A prompt that is no string is treated as absent."""
    assert "pier" in ask({"prompt": 5, "text": REPORT})["answer"]
    assert "pier" in ask(REPORT)["answer"] and "pier" in ask([REPORT])["answer"]


def seed(payload: Any, kind: str = "Exact") -> dict[str, Any]:
    hit = {"hit_type": kind, "reuse_payload": payload, "confidence_hint": 1.0}
    return {"seed_type": "SIMILAR_HITS_V1", "hits": [hit], "constraints": {}}


def test_exact_hit_is_reused_when_the_operator_allows() -> None:
    """With reuse_exact an exact hit that satisfies the schema is returned unchanged."""
    earlier = {"answer": "Seen before.", "confidence": 0.4, "extra": [1]}
    job = {"seed": seed(earlier), "stage": "DECIDE", "output_schema": SAMPLE_SCHEMA}
    assert ask({"prompt": REPORT}, settings={"reuse_exact": True}, **job) == earlier
    assert ask({"prompt": REPORT}, settings={"reuse_exact": False}, **job) != earlier


@pytest.mark.parametrize(
    ("hits", "stage"),
    [
        (seed({"answer": 5}), "DECIDE"),
        (seed(None), "DECIDE"),
        (seed("text"), "DECIDE"),
        (seed({"answer": "Seen."}, "Similar"), "DECIDE"),
        (seed({"answer": "Seen."}), "DIVERGE_MODE"),
        ({"hits": "no"}, "DECIDE"),
        ({"hits": [None, 5, []]}, "DECIDE"),
        (["hits"], "DECIDE"),
        (None, "DECIDE"),
    ],
)
def test_other_seeds_are_not_reused(hits: Any, stage: str) -> None:
    """A hit that breaks the schema, is only similar, comes while diverging or is malformed is not reused."""
    output = ask(
        {"prompt": REPORT},
        settings={"reuse_exact": True},
        seed=hits,
        stage=stage,
        output_schema=SAMPLE_SCHEMA,
    )
    assert output["answer"] != "Seen." and any(s in output["answer"] for s in SENTENCES)


def test_diverging_gives_another_answer() -> None:
    """DIVERGE_MODE avoids the sentences of the usual answer and of the seed's earlier one."""
    usual = ask({"prompt": REPORT})["answer"]
    other = ask({"prompt": REPORT}, stage="DIVERGE_MODE")["answer"]
    assert not {s for s in SENTENCES if s in usual} & {s for s in SENTENCES if s in other}
    told = seed({"answer": SENTENCES[-1]})
    third = ask({"prompt": REPORT}, stage="DIVERGE_MODE", seed=told)["answer"]
    assert SENTENCES[-1] not in third and third != usual


def test_diverging_without_choice_is_said_in_the_confidence() -> None:
    """Two sentences still allow another answer; a single one is repeated with half the confidence."""
    pair = {"prompt": "The pier broke in the storm. The cranes were insured by the town."}
    assert ask(pair)["answer"] != ask(pair, stage="DIVERGE_MODE")["answer"]
    single = {"prompt": "The pier broke in the storm."}
    usual, other = ask(single), ask(single, stage="DIVERGE_MODE")
    assert usual["answer"] == other["answer"]
    assert other["confidence"] == usual["confidence"] / 2


@pytest.mark.parametrize("stage", [None, "EXPLORE", "explore", "finalize", "something new", "X" * 5000])
def test_unknown_stages_are_open(stage: str | None) -> None:
    """Any stage is served as exploring, and named within reason in the check summary."""
    output = ask({"prompt": REPORT}, stage=stage, attempt=3)
    assert output["answer"] == ask({"prompt": REPORT})["answer"]
    assert "attempt=3" in output["check_summary"] and len(output["check_summary"]) < 300


def contract(max_len: Any) -> dict[str, Any]:
    policy = {"policy_id": "vp.schema_thresholds.v1", "policy_params": {"max_len": max_len}}
    return {"acceptance": {"verifier_policy": policy}}


def test_length_threshold_of_the_policy_is_met() -> None:
    """The thresholds policy counts bytes of compact JSON; the answer is shortened until they fit."""
    for limit in (900, 400, 250):
        output = ask({"prompt": REPORT * 3}, swarm=contract(limit), output_schema=SAMPLE_SCHEMA)
        size = len(json.dumps(output, separators=(",", ":"), ensure_ascii=False).encode())
        assert size <= limit and output["answer"]


@pytest.mark.parametrize("odd", [-1, 1.0, "5", None, True, {}, 10**12])
def test_odd_length_thresholds_are_ignored(odd: Any) -> None:
    """What the kernel ignores as a threshold is ignored here, and malformed contracts do no harm."""
    plain = ask({"prompt": REPORT}, swarm={}, output_schema=SAMPLE_SCHEMA)
    assert ask({"prompt": REPORT}, swarm=contract(odd), output_schema=SAMPLE_SCHEMA) == plain
    assert ask({"prompt": REPORT}, swarm={"acceptance": [1]}, output_schema=SAMPLE_SCHEMA) == plain


def test_swarm_output_carries_a_decision_where_allowed() -> None:
    """In the swarm an open schema also gets a decision, which aggregation reads; a closed one does not."""
    output = ask({"prompt": REPORT}, swarm={}, output_schema=SAMPLE_SCHEMA)
    assert output["decision"] in {"answered", "insufficient"}
    closed = {**SAMPLE_SCHEMA, "additionalProperties": False}
    assert set(ask({"prompt": REPORT}, swarm={}, output_schema=closed)) == {
        "answer",
        "confidence",
        "check_summary",
    }
    assert "decision" not in ask({"prompt": REPORT}, output_schema=SAMPLE_SCHEMA)


def test_impossible_schema_fails_with_its_code() -> None:
    """A schema that no text can satisfy ends as UNSATISFIABLE_SCHEMA and names the place."""
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"enum": []}}}
    with pytest.raises(Failed) as caught:
        ask({"prompt": REPORT}, output_schema=schema)
    assert caught.value.code == "UNSATISFIABLE_SCHEMA"
    assert caught.value.details["path"] == "a"
    for top in ({"type": "number"}, {"type": "nonsense"}, False, 5, "x", {"required": 5}):
        with pytest.raises(Failed):
            ask({"prompt": REPORT}, output_schema=top)


def test_guesses_lower_the_confidence_and_are_named() -> None:
    """A required field about which the text says nothing is guessed, told, and paid for in confidence."""
    schema = {
        "type": "object",
        "required": ["answer", "price"],
        "properties": {"answer": {"type": "string"}, "price": {"type": "number"}},
    }
    sure, unsure = ask({"prompt": REPORT}), ask({"prompt": REPORT}, output_schema=schema)
    assert unsure["price"] == 0 and "guessed: price" in unsure["check_summary"]
    assert unsure["confidence"] < sure["confidence"]


def test_topic_interpretation_abstains_and_repeats_ids() -> None:
    """Fields named in the input are repeated, and a stance is never taken without reading a mind."""
    names = ["source_message_id", "proposal_id", "proposal_message_id", "stance", "answer", "summary"]
    schema = {
        "type": "object",
        "required": [*names, "confidence", "needs_review"],
        "properties": {
            **{name: {"type": "string"} for name in names},
            "confidence": {"type": "number"},
            "needs_review": {"type": "boolean"},
        },
    }
    topic = {
        "source_message": {"message_id": "m-1", "content": "Let us build the pier first. It is cheaper."},
        "candidate_proposals": [{"proposal_id": "p-1", "proposal_message_id": "pm-1", "goal": None}],
        "source_message_id": "m-1",
    }
    output = ask(topic, output_schema=schema, swarm={})
    jsonschema.validate(output, schema)
    assert (output["source_message_id"], output["proposal_id"]) == ("m-1", "p-1")
    assert output["stance"] == "abstain"
    assert output["needs_review"] is (output["confidence"] < 0.65)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None)
@given(ANY_JSON)
def test_any_json_is_answered_or_refused(given_input: Any) -> None:
    """Arbitrary JSON gives a valid output that UTF-8 can carry, or InvalidInput; never anything else."""
    try:
        output = ask(given_input)
    except InvalidInput:
        return
    jsonschema.validate(output, OUTPUT_SCHEMA)
    json.dumps(output, ensure_ascii=False).encode()


def test_half_characters_never_reach_the_output() -> None:
    """Unpaired surrogates and null bytes in an input are dropped, wherever they stand."""
    output = ask(
        {"prompt": "The pier \ud800 broke.\x00 The cranes fell.", "title": "a\udfff"},
        output_schema={"type": "object", "properties": {"title": {"type": "string"}}},
    )
    text = json.dumps(output, ensure_ascii=False)
    assert "\x00" not in text
    text.encode()


HUGE = {
    "dots": "." * 200_000,
    "abbreviations": "e.g. " * 40_000,
    "one word": "a" * 200_000,
    "words": "word " * 40_000,
    "sentences": "".join(f"Sentence {i} speaks of thing{i % 700}. " for i in range(6000)),
    "newlines": "\n" * 200_000,
    "bullets": "- item\n" * 25_000,
    "quotes": ".)" * 100_000,
    "wide": "港湾" * 100_000,
    "many": ["two words"] * 50_000,
    "deep": None,
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_inputs_are_bounded(name: str) -> None:
    """Texts made to be slow or large still give a small answer."""
    value: Any = HUGE[name]
    if name == "deep":
        value = "The bottom is reached."
        for _ in range(500):
            value = [value]
    output = ask({"prompt": "What is said?", "text": value})
    assert len(json.dumps(output)) < 20_000


def test_splitting_knows_abbreviations_lists_and_other_scripts() -> None:
    """Sentences end where a reader would end them."""
    assert [s.text for s in split("Dr. A. Lind, e.g. she, came. She left! Why?")] == [
        "Dr. A. Lind, e.g. she, came.",
        "She left!",
        "Why?",
    ]
    assert [s.text for s in split("# Title\n- one thing\n- two things\n\nEnd")] == [
        "Title",
        "one thing",
        "two things",
        "End",
    ]
    assert len(split("港は閉まった。船は来ない。")) == 2
    assert split("") == [] and split(" \n ") == []


def test_words_fold_and_skip() -> None:
    """Plurals meet their singular, common words fall out, wide scripts count by pairs."""
    assert list(words("The piers and a pier, bodies of glass")) == ["pier", "pier", "body", "glass"]
    assert list(words("東京湾")) == ["東京", "京湾"]


def test_cut_ends_at_a_word() -> None:
    """A shortened text never exceeds its limit and shows that something is missing."""
    assert cut("the pier broke", 14) == "the pier broke"
    assert cut("the pier broke", 10) == "the pier…"
    assert [len(cut("abcdef", n)) for n in range(7)] == list(range(7))


def test_prose_leaves_ids_and_the_kernels_own_keys_out() -> None:
    """Only text is collected: no ids, links, hashes, nor keys that begin with an underscore."""
    found = prose(
        {"a": "two words", "b": "https://x.y/z", "c": ["id-1", "more words here"], "_signal": {"t": "no no"}}
    )
    assert found == ["two words", "more words here"]
    assert "order: 17" in facts(A2A)


def test_choice_does_not_repeat_itself() -> None:
    """Sentences that say the same are chosen once, and the words that matter are named."""
    sentences = split("The old pier is broken. The old pier is broken! A loan is needed. Boats land in Esk.")
    texts = choose(sentences, 3).text
    assert texts.count("pier") == 1
    assert "pier" in keywords(split(REPORT), 5)


def test_reading_tells_questions_from_texts() -> None:
    """A long prompt is text like the rest; a short one beside texts is the question."""
    assert read({"prompt": "Why was it closed?", "t": REPORT}).query
    both = read({"prompt": REPORT, "t": "The ferry still runs twice a day."})
    assert not both.query and len(both.sentences) == len(SENTENCES) + 1
    assert [s.place for s in both.sentences] == list(range(len(both.sentences)))
