"""Speculative decoding emits what plain decoding emits, whatever the head proposes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import RunStatistics, StepEvent
from eagle3_demo.decoding.local_engine import LocalEngine
from eagle3_demo.decoding.sampling import processed_log_probabilities
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.models.head import Eagle3Head, HeadSession
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import GenerationSettings, generation_settings
from tests.tiny_head import tiny_head
from tests.tiny_target import tiny_target

PROMPT = [5, 17, 3, 29, 11]
SHAPES = [(2, 1, 1), (6, 4, 3), (12, 3, 8), (40, 6, 6), (5, 4, 1)]
CHAINS = [
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.8, "top_k": 20},
    {"temperature": 0.3},
]


def head_for(target: TargetModel, **flags: object) -> Eagle3Head:
    """A random head over half of the target's vocabulary: it is right now and then."""
    size = target.vocabulary_size
    return tiny_head(size, size // 2, target.hidden_size, seed=4, **flags)


def settings(shape: tuple[int, int, int] = (6, 4, 3), **values: object) -> GenerationSettings:
    nodes, depth, top_k = shape
    return generation_settings(**{"max_new_tokens": 40, "nodes": nodes, "depth": depth, "tree_top_k": top_k} | values)


def run(events: Iterator[StepEvent]) -> tuple[list[StepEvent], RunStatistics]:
    kept = list(events)
    return kept, RunStatistics.of(kept)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chain", [{}, *CHAINS])
def test_tokens_equal_plain_decoding(target: TargetModel, shape: tuple[int, int, int], chain: dict[str, float]) -> None:
    request = settings(shape, seed=3, **chain)
    _, plain = run(decode_autoregressive(target, PROMPT, request))
    _, speculated = run(decode_speculatively(target, head_for(target), PROMPT, request))
    assert speculated.token_ids == plain.token_ids
    assert speculated.text == plain.text
    assert speculated.stop_reason == plain.stop_reason


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 9])
def test_budgets_are_exact(target: TargetModel, budget: int) -> None:
    request = settings((40, 6, 6), max_new_tokens=budget)
    _, plain = run(decode_autoregressive(target, PROMPT, request))
    events, speculated = run(decode_speculatively(target, head_for(target), PROMPT, request))
    assert speculated.token_ids == plain.token_ids
    assert speculated.new_tokens <= budget
    for event in events[1:]:
        assert max(event.tree.parents) < len(event.tree.tokens)


def test_events_tell_the_whole_story(target: TargetModel) -> None:
    """Trees, paths, tokens and cache lengths of consecutive events fit together."""
    events, statistics = run(decode_speculatively(target, head_for(target), PROMPT, settings((12, 4, 4))))
    assert [event.index for event in events] == list(range(len(events)))
    assert events[0].tree.tokens == (PROMPT[-1],) and len(events[0].tokens) == 1
    length = len(PROMPT)
    last = events[0].tokens[-1].id
    for event in events[1:]:
        tree = event.tree
        assert tree.tokens[0] == last
        emitted = [tree.tokens[node] for node in tree.path] + [tree.target_token]
        assert [token.id for token in event.tokens] == emitted[: len(event.tokens)]
        assert [token.drafted for token in event.tokens] == ([True] * len(tree.path) + [False])[: len(event.tokens)]
        assert {node for node, status in enumerate(tree.statuses) if status == "accepted"} == set(tree.path)
        length += len(event.tokens)
        if event.stop_reason is None:
            assert event.target_cache_length == event.draft_cache_length == length
        last = event.tokens[-1].id
    assert statistics.target_forwards == len(events) - 1
    assert statistics.acceptance_length == pytest.approx((statistics.new_tokens - 1) / statistics.target_forwards)


def test_a_perfect_head_is_accepted(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tree that holds the target's own continuation every level stands, and nothing else changes."""
    from eagle3_demo.decoding import speculative
    from eagle3_demo.decoding.tree import DraftTree

    request = settings((6, 4, 1), max_new_tokens=30)
    _, plain = run(decode_autoregressive(target, PROMPT, request))
    answer = plain.token_ids

    def oracle(self: speculative.Drafter, root_token: int, remaining: int) -> DraftTree:
        at = self.length - len(PROMPT) + 1
        chain = answer[at : at + 4]
        self._session.extend(self._embed(self._ids(self._tokens)), torch.cat(self._taps))
        self._tokens, self._taps = [], []
        size = len(chain) + 1
        return DraftTree((root_token, *chain), (-1, *range(size - 1)), (0.0,) * size)

    monkeypatch.setattr(speculative.Drafter, "draft", oracle)
    _, speculated = run(decode_speculatively(target, head_for(target), PROMPT, request))
    assert speculated.token_ids == answer
    assert speculated.acceptance_length > 4


def test_beyond_the_heads_context_decoding_goes_on_plainly(target: TargetModel) -> None:
    head = head_for(target, max_position_embeddings=16)
    request = settings((12, 4, 4))
    _, plain = run(decode_autoregressive(target, PROMPT, request))
    events, speculated = run(decode_speculatively(target, head, PROMPT, request))
    assert speculated.token_ids == plain.token_ids
    assert len(events[1].tree.tokens) > 1
    assert all(len(event.tree.tokens) == 1 for event in events if event.draft_cache_length > 17)


@pytest.mark.parametrize("length", [60, 63, 64, 65, 200])
def test_prompts_around_the_heads_context_change_nothing(target: TargetModel, length: int) -> None:
    """Faults B18 and B19: on both sides of the head's 64 positions, and up to the end of the target's 256."""
    head = head_for(target, max_position_embeddings=64)
    endless = replace(target, end_tokens=frozenset())
    prompt = [3 + index * 7 % 270 for index in range(length)]
    request = settings((12, 4, 4), max_new_tokens=60 if length == 200 else 12)
    _, plain = run(decode_autoregressive(endless, prompt, request))
    events, speculated = run(decode_speculatively(endless, head, prompt, request))
    assert speculated.token_ids == plain.token_ids
    assert speculated.stop_reason == plain.stop_reason == ("context" if length == 200 else "length")
    assert any(len(event.tree.tokens) > 1 for event in events) is (length < 64)
    told = LocalEngine(target, {"eagle3": ("head", head)}, "tiny").speculation(request)
    assert told.active and "plain decoding beyond position 64" in told.reason


def test_the_head_learns_the_targets_own_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults B24: what enters the draft cache is what a fresh prefill of the same text gives, shifted by one token."""
    learnt: list[tuple[torch.Tensor, torch.Tensor]] = []
    extend = HeadSession.extend

    def watched(self: HeadSession, embeddings: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        learnt.append((embeddings.clone(), taps.clone()))
        return extend(self, embeddings, taps)

    monkeypatch.setattr(HeadSession, "extend", watched)
    target = replace(tiny_target(vocab_size=12), end_tokens=frozenset())
    head, prompt = tiny_head(12, 6, target.hidden_size, seed=4), [5, 7, 3, 9, 11]
    request = settings((8, 3, 4), temperature=1.0, seed=2)
    _, statistics = run(decode_speculatively(target, head, prompt, request))
    assert statistics.accepted_tokens > 5
    ids = [*prompt, *statistics.token_ids]
    embeddings, taps = (torch.cat(parts) for parts in zip(*learnt, strict=True))
    count = len(taps)
    assert count > len(prompt) + 20
    fresh = target.session(len(ids), head.config.taps or target.default_taps).prefill(ids[:count]).taps
    assert fresh is not None
    torch.testing.assert_close(taps, fresh, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(embeddings, target.embed(torch.tensor(ids[1 : count + 1])))


def test_cancelling_and_closing_leave_the_next_request_right(target: TargetModel) -> None:
    head, request = head_for(target), settings()
    _, first = run(decode_speculatively(target, head, PROMPT, request))
    asked = iter([False, False, True])
    events, _ = run(decode_speculatively(target, head, PROMPT, request, lambda: next(asked)))
    assert len(events) == 3 and events[-1].stop_reason == "cancelled"
    closed = decode_speculatively(target, head, PROMPT, request)
    next(closed)
    closed.close()
    _, again = run(decode_speculatively(target, head, PROMPT, request))
    assert again.token_ids == first.token_ids


def test_threads_do_not_disturb_each_other(target: TargetModel) -> None:
    head = head_for(target)
    prompts = [[5 + n, 17, 3 + n, 29] for n in range(3)]
    requests = [settings(temperature=0.9, seed=n, max_new_tokens=16) for n in range(3)]
    serial = [
        run(decode_speculatively(target, head, p, r))[1].token_ids for p, r in zip(prompts, requests, strict=True)
    ]
    parallel: list[list[int]] = [[] for _ in prompts]

    def work(number: int) -> None:
        events = decode_speculatively(target, head, prompts[number], requests[number])
        parallel[number] = run(events)[1].token_ids

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parallel == serial


@pytest.mark.parametrize("chain", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.85, "top_k": 12}])
def test_first_two_tokens_have_the_targets_distribution(chain: dict[str, float]) -> None:
    """Chi-square over seeds against the exact joint distribution from plain forwards, pairs expected rarely pooled."""
    target = tiny_target(vocab_size=12)
    head = tiny_head(12, 6, target.hidden_size, seed=4)
    draws = 1500
    counts: Counter[tuple[int, int]] = Counter()
    prompt = [5, 7, 3, 9, 11]
    for seed in range(draws):
        request = settings((8, 2, 4), max_new_tokens=3, seed=seed, **chain)
        ids = run(decode_speculatively(target, head, prompt, request))[1].token_ids
        counts[ids[0], ids[1] if len(ids) > 1 else -1] += 1
    expected = joint_distribution(target, prompt, request)
    statistic, cells, pooled_seen, pooled_expected = 0.0, 0, 0.0, 0.0
    for pair, probability in expected.items():
        if probability * draws < 5:
            pooled_seen += counts[pair]
            pooled_expected += probability * draws
        else:
            statistic += (counts[pair] - probability * draws) ** 2 / (probability * draws)
            cells += 1
    if pooled_expected > 0:
        statistic += (pooled_seen - pooled_expected) ** 2 / pooled_expected
    assert sum(counts[pair] for pair in expected) == draws
    # Mean of the statistic is `cells`, its standard deviation sqrt(2 * cells).
    assert statistic < cells + 4 * (2 * cells) ** 0.5


def joint_distribution(
    target: TargetModel, prompt: list[int], request: GenerationSettings
) -> dict[tuple[int, int], float]:
    """Exact probabilities of the first two tokens; -1 where an end token leaves no second."""

    def following(ids: list[int]) -> list[float]:
        session = target.session(len(ids))
        return processed_log_probabilities(session.prefill(ids).logits[0], request.sampling).exp().tolist()

    pairs: dict[tuple[int, int], float] = {}
    for first, probability in enumerate(following(prompt)):
        if probability == 0:
            continue
        if first in target.end_tokens:
            pairs[first, -1] = probability
            continue
        for second, conditional in enumerate(following([*prompt, first])):
            if conditional > 0:
                pairs[first, second] = probability * conditional
    return pairs
