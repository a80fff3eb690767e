"""Plain decoding against `transformers.generate`, and what every loop promises: events, budgets, ends, cancelling."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import RunStatistics, StepEvent
from eagle3_demo.decoding.sampling import pick
from eagle3_demo.decoding.steps import StepWriter
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.verification import Verdict
from eagle3_demo.errors import UserError
from eagle3_demo.models.chat import encode_chat
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import GenerationSettings, generation_settings
from tests.tiny_target import tiny_target

PROMPT = [5, 80, 33, 9, 120, 77, 200, 41, 6, 19]


def settings(**values: Any) -> GenerationSettings:
    return generation_settings(method="autoregressive", **{"max_new_tokens": 40} | values)


def run(target: TargetModel, prompt: list[int] = PROMPT, **values: Any) -> list[StepEvent]:
    return list(decode_autoregressive(target, prompt, settings(**values)))


def tokens(events: list[StepEvent]) -> list[int]:
    return RunStatistics.of(events).token_ids


def generated(model: PreTrainedModel, prompt: list[int], new_tokens: int, end: int | None) -> list[int]:
    """transformers' greedy answer."""
    output = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=new_tokens, eos_token_id=end, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def endless(target: TargetModel) -> TargetModel:
    """The target without end tokens."""
    return replace(target, end_tokens=frozenset())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox"])
def test_greedy_equals_transformers_generate(family: str, seed: int) -> None:
    target = tiny_target(family, seed)
    reference = tiny_target(family, seed).model
    reference.set_attn_implementation("sdpa")
    assert tokens(run(endless(target), max_new_tokens=60)) == generated(reference, PROMPT, 60, None)


def test_an_end_token_ends_as_in_transformers_generate(target: TargetModel, reference: PreTrainedModel) -> None:
    free = tokens(run(endless(target)))
    end = free[7]
    events = run(replace(target, end_tokens=frozenset({end, 279})))
    kept = tokens(events)
    assert kept == generated(reference, PROMPT, 40, end) == free[: free.index(end) + 1]
    assert events[-1].stop_reason == "end_token"
    assert events[-1].tokens[-1].text == ""
    assert events[-1].target_cache_length == len(PROMPT) + len(kept) - 1


def test_events_tell_the_run(target: TargetModel) -> None:
    events = run(endless(target), max_new_tokens=12)
    emitted = tokens(events)
    assert [event.index for event in events] == list(range(12))
    assert [event.stop_reason for event in events] == [None] * 11 + ["length"]
    assert [event.tree.tokens for event in events] == [(token,) for token in [PROMPT[-1], *emitted[:-1]]]
    assert [event.tree.target_token for event in events] == emitted
    assert [event.target_cache_length for event in events] == [len(PROMPT) + index for index in range(12)]
    for event in events:
        assert (event.tree.statuses, event.tree.path, event.tree.parents) == (("root",), (), (-1,))
        assert not event.tokens[0].drafted
        assert event.seconds_verify > 0 and event.seconds_draft == 0
    decoded = target.tokenizer.decode(emitted, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    statistics = RunStatistics.of(events)
    assert statistics.text == decoded
    assert (statistics.acceptance_length, statistics.target_forwards) == (1.0, 11)


def test_a_sampled_run_draws_each_position_from_its_own_noise(target: TargetModel) -> None:
    chain = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 3}
    emitted = tokens(run(endless(target), **chain))
    session = target.session(100)
    for index, token in enumerate(emitted):
        session.reset()
        logits = session.prefill([*PROMPT, *emitted[:index]]).logits
        assert token == pick(logits, len(PROMPT) + index, settings(**chain).sampling)


def test_seeds_repeat_and_differ(target: TargetModel) -> None:
    runs = [tokens(run(target, temperature=1.5, seed=seed)) for seed in (1, 2, 1)]
    assert runs[0] == runs[2] != runs[1]


def test_parallel_runs_equal_serial_runs() -> None:
    target = tiny_target(packed=True)

    def one(seed: int) -> list[int]:
        return tokens(run(target, PROMPT[seed:], temperature=float(seed % 2), seed=seed))

    serial = [one(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == serial


def test_a_stop_string_ends_the_text(target: TargetModel) -> None:
    text = RunStatistics.of(run(endless(target))).text
    stop = text[10:12]
    statistics = RunStatistics.of(run(endless(target), stop=(stop,)))
    assert statistics.text == text[: text.index(stop)]
    assert statistics.stop_reason == "stop_string"


@pytest.mark.parametrize("length,new,reason", [(250, 6, "context"), (255, 1, "context"), (246, 10, "length")])
def test_the_context_ends_a_run(target: TargetModel, length: int, new: int, reason: str) -> None:
    events = run(endless(target), (PROMPT * 30)[:length], max_new_tokens=10)
    assert (len(tokens(events)), events[-1].stop_reason) == (new, reason)


def test_prompts_that_do_not_fit_are_refused(target: TargetModel) -> None:
    with pytest.raises(UserError, match="256 tokens and tiny-llama has a context of 256"):
        run(target, (PROMPT * 30)[:256])
    with pytest.raises(UserError, match="no tokens"):
        run(target, [])
    assert tokens(run(target, [0], max_new_tokens=1))


def test_cancelling_ends_after_the_step_and_is_asked_once_a_step(target: TargetModel) -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(len(asked))
        return len(asked) == 4

    events = list(decode_autoregressive(endless(target), PROMPT, settings(stop=("zzz",)), cancelled))
    assert (len(events), len(asked)) == (4, 4)
    assert events[-1].stop_reason == "cancelled"
    ids = tokens(events)
    decoded = target.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    # A character that the end cuts in half is not shown.
    assert RunStatistics.of(events).text == decoded.removesuffix("\ufffd")


def test_a_closed_run_leaves_the_next_one_alone(target: TargetModel) -> None:
    before = tokens(run(target))
    half = decode_autoregressive(target, PROMPT[::-1], settings())
    next(half)
    next(half)
    half.close()  # type: ignore[attr-defined]
    assert tokens(run(target)) == before


TREE = DraftTree((9, 30, 31, 32, 33), (-1, 0, 1, 2, 1), (0.0,) * 5)


@pytest.mark.parametrize(
    "ends,budget,emitted,nodes,statuses,reason",
    [
        ((), 9, [30, 31, 32, 40], [0, 1, 2, 3], "root accepted accepted accepted rejected", None),
        ((31,), 9, [30, 31], [0, 1], "root accepted accepted unreached rejected", "end_token"),
        ((40,), 9, [30, 31, 32, 40], [0, 1, 2, 3], "root accepted accepted accepted rejected", "end_token"),
        ((), 1, [30], [0], "root accepted unreached unreached rejected", "length"),
    ],
)
def test_an_end_inside_a_step_keeps_the_rest_out(
    target: TargetModel,
    ends: tuple[int, ...],
    budget: int,
    emitted: list[int],
    nodes: list[int],
    statuses: str,
    reason: str | None,
) -> None:
    writer = StepWriter(replace(target, end_tokens=frozenset(ends)), settings(max_new_tokens=9), budget, lambda: False)
    verdict = Verdict((1, 2, 3), 40)
    assert writer.take(TREE, verdict) == nodes
    event = writer.event(TREE, verdict, 0, 0, torch.zeros(len(TREE), target.vocabulary_size))
    assert [token.id for token in event.tokens] == emitted
    assert [token.drafted for token in event.tokens] == [token != 40 for token in emitted]
    assert " ".join(event.tree.statuses) == statuses
    assert event.tree.path == (1, 2, 3)[: len(emitted)]
    assert event.stop_reason == ("context" if reason == "length" else reason)


@pytest.mark.real_model
@pytest.mark.parametrize("prompt", ["What is the capital of France?", "Write a haiku about rain in a city 🌧."])
def test_the_embedded_model_answers_as_transformers_does(
    embedded_float32: TargetModel, embedded_reference: PreTrainedModel, prompt: str
) -> None:
    ids = encode_chat(embedded_float32.tokenizer, [{"role": "user", "content": prompt}])
    answer = tokens(run(embedded_float32, ids, max_new_tokens=48))
    assert answer == generated(embedded_reference, ids, 48, 2)
