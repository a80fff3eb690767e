"""The training-time test against incremental drafting, its fused attention against the plain one, its mask by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle3_demo.models.head import HeadSession
from eagle3_demo.training import training_time_test as ttt
from eagle3_demo.training.training_time_test import (
    DiagonalAttention,
    SoftCrossEntropy,
    TrainingBatch,
    total_loss,
    training_time_test,
)
from tests.tiny_head import tiny_head


def batch_of(lengths: list[int], prompts: list[int], hidden: int = 32, seed: int = 1) -> TrainingBatch:
    """Random right-aligned sequences; labels stay inside the tiny head's draft vocabulary (even ids below 40)."""
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths)
    real = torch.stack([torch.arange(n) >= n - length for length in lengths])
    pairs = zip(lengths, prompts, strict=True)
    answer = torch.stack([torch.arange(n) >= n - length + prompt for length, prompt in pairs])
    shape = (len(lengths), n)
    return TrainingBatch(
        tokens=torch.randint(0, 20, shape, generator=generator) * 2,
        real=real,
        answer=answer,
        taps=torch.randn(*shape, 3 * hidden, generator=generator),
        final=torch.randn(*shape, hidden, generator=generator),
        choice=torch.randint(0, 20, shape, generator=generator) * 2,
    )


def test_every_step_equals_incremental_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What step k computes at slot i is what a draft with a cache computes after the same prefix."""
    head, embedding = tiny_head(), torch.randn(50, 32)
    batch = batch_of([14, 10, 14], [6, 5, 7])
    seen: dict[int, tuple[Tensor, int]] = {}
    original = ttt._step_result

    def spy(head, labels, batch, slots, output, step):
        seen[step] = (output, slots.first)
        return original(head, labels, batch, slots, output, step)

    monkeypatch.setattr(ttt, "_step_result", spy)
    training_time_test(head, embedding, torch.randn(20, 32), batch, 4)
    for row, slot in [(0, 5), (0, 8), (1, 9), (2, 7)]:
        session = HeadSession(head, 40)
        start = int((~batch.real[row]).sum())
        tokens = batch.tokens[row]
        state = session.extend(embedding[tokens[start + 1 : slot + 2]], batch.taps[row, start : slot + 1])
        for step in range(4):
            output, first = seen[step]
            torch.testing.assert_close(output[row, slot - first], state, atol=1e-5, rtol=1e-4)
            if slot + 2 + step >= len(tokens):
                break
            chain = torch.ones(1, step + 1, dtype=torch.bool)
            following = embedding[tokens[slot + 2 + step]][None]
            state = session.expand(following, head.feedback(state)[None], step, chain, step)[0]


def test_only_tokens_of_the_target_are_supervised() -> None:
    """Slot p counts at step k iff tokens p+1 and p+2+k are answer tokens (faults B36)."""
    head = tiny_head()
    batch = batch_of([8], [3])
    results = training_time_test(head, torch.randn(50, 32), torch.randn(20, 32), batch, 5)
    assert [result.slots for result in results] == [4, 3, 2, 1, 0]
    assert results[-1].loss.item() == 0.0


def test_loss_is_a_mean_over_valid_slots_and_ignores_padding_and_prompt_rows() -> None:
    head, embedding, rows = tiny_head(), torch.randn(50, 32), torch.randn(20, 32)
    alone = batch_of([9], [4])
    pad = torch.zeros(1, 3, dtype=torch.bool)
    padded = TrainingBatch(
        tokens=torch.cat([torch.full((1, 3), 6), alone.tokens], 1),
        real=torch.cat([pad, alone.real], 1),
        answer=torch.cat([pad, alone.answer], 1),
        taps=torch.cat([torch.randn(1, 3, 96), alone.taps], 1),
        final=torch.cat([torch.randn(1, 3, 32), alone.final], 1),
        choice=torch.cat([torch.zeros(1, 3, dtype=torch.long), alone.choice], 1),
    )
    first = training_time_test(head, embedding, rows, alone, 3)
    second = training_time_test(head, embedding, rows, padded, 3)
    torch.testing.assert_close(total_loss(first), total_loss(second), atol=1e-5, rtol=1e-5)


def test_choices_outside_the_draft_vocabulary_give_no_loss() -> None:
    head = tiny_head()
    batch = batch_of([9], [4])
    batch.choice[:] = 41
    results = training_time_test(head, torch.randn(50, 32), torch.randn(20, 32), batch, 2)
    assert [result.loss.item() for result in results] == [0.0, 0.0]
    assert [int(result.matches) for result in results] == [0, 0]


def test_diagonal_attention_and_its_gradients_equal_plain_autograd() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, size, 8, requires_grad=True) for size in (5, 9, 9)]
    inputs += [torch.randn(2, 2, 3, 5, 8, requires_grad=True) for _ in range(2)]
    mask = torch.zeros(2, 1, 5, 9).masked_fill(torch.rand(2, 1, 5, 9) < 0.3, float("-inf"))
    mask[..., 0] = 0
    queries, keys, values, own_keys, own_values = inputs
    scores = queries @ keys.transpose(-1, -2) * 8**-0.5 + mask
    diagonal = (queries * own_keys).sum(-1).permute(1, 2, 3, 0) * 8**-0.5
    weights = torch.softmax(torch.cat([scores, diagonal], -1), -1)
    expected = weights[..., :9] @ values + (weights[..., 9:].permute(3, 0, 1, 2)[..., None] * own_values).sum(0)
    actual = DiagonalAttention.apply(*inputs, mask)
    torch.testing.assert_close(actual, expected)
    gradient = torch.randn_like(expected)
    pairs = zip(
        torch.autograd.grad(actual, inputs, gradient), torch.autograd.grad(expected, inputs, gradient), strict=True
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_soft_cross_entropy_equals_torchs() -> None:
    logits = torch.randn(6, 11, requires_grad=True)
    target = torch.softmax(torch.randn(6, 11), -1)
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    actual = SoftCrossEntropy.apply(logits, target)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn(6)
    ours, theirs = (torch.autograd.grad((loss * weights).sum(), logits)[0] for loss in (actual, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
