"""The training-time test against incremental drafting, its fused attention against the plain one, its mask by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle3_demo.models.head import HeadSession
from eagle3_demo.training import training_time_test as ttt
from eagle3_demo.training.diagonal_attention import DiagonalAttention, plain_diagonal_attention
from eagle3_demo.training.training_time_test import (
    TrainingBatch,
    total_loss,
    training_time_test,
    valid_slots,
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

    def spy(head, labels, batch, slots, output, step, kind):
        seen[step] = (output, slots.first)
        return original(head, labels, batch, slots, output, step, kind)

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
    torch.testing.assert_close(plain_diagonal_attention(*inputs, mask), expected)
    gradient = torch.randn_like(expected)
    pairs = zip(
        torch.autograd.grad(actual, inputs, gradient), torch.autograd.grad(expected, inputs, gradient), strict=True
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_other_devices_take_the_plain_attention_with_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    head, embedding, rows, batch = tiny_head(), torch.randn(50, 32), torch.randn(20, 32), batch_of([12, 9], [5, 4])
    fused = training_time_test(head, embedding, rows, batch, 3)
    monkeypatch.setattr(DiagonalAttention, "apply", plain_diagonal_attention)
    plain = training_time_test(head, embedding, rows, batch, 3)
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one.loss, other.loss, atol=1e-5, rtol=1e-5)


def test_no_slot_looks_from_one_turn_into_the_next() -> None:
    """Two answers of 4 tokens with one token of the template between: a label beyond it belongs to another turn."""
    batch = batch_of([12], [3])
    batch.answer[0, 7] = False
    results = training_time_test(tiny_head(), torch.randn(50, 32), torch.randn(20, 32), batch, 5)
    assert [result.slots for result in results] == [6, 4, 2, 0, 0]


def test_valid_slots_are_known_without_running_the_head() -> None:
    head, batch = tiny_head(), batch_of([14, 10, 12], [6, 5, 4])
    batch.answer[0, 9] = False
    batch.choice[:, 7:9] = 41
    results = training_time_test(head, torch.randn(50, 32), torch.randn(20, 32), batch, 5)
    assert valid_slots(batch, head.t2d, 5).tolist() == [int(result.valid) for result in results]
    assert any(int(result.valid) < result.slots for result in results)


def test_parts_of_an_update_add_up_to_its_loss() -> None:
    head, embedding, rows, batch = tiny_head(), torch.randn(50, 32), torch.randn(20, 32), batch_of([14, 10], [6, 5])
    batch.choice[1, 7] = 41
    whole = total_loss(training_time_test(head, embedding, rows, batch, 3))
    valid = valid_slots(batch, head.t2d, 3)
    parts = [training_time_test(head, embedding, rows, part, 3) for part in batch.split(1)]
    torch.testing.assert_close(sum(total_loss(results, valid=valid) for results in parts), whole)


def test_training_and_evaluation_mode_compute_the_same() -> None:
    """Nothing in an EAGLE-3 head depends on the mode: what is evaluated is what was trained."""
    head, embedding, rows, batch = tiny_head(), torch.randn(50, 32), torch.randn(20, 32), batch_of([9], [4])
    losses = [total_loss(training_time_test(head.train(mode), embedding, rows, batch, 3)) for mode in (True, False)]
    assert losses[0] == losses[1]


def test_every_tensor_is_made_on_the_heads_device() -> None:
    head, embedding, rows, batch = tiny_head(), torch.randn(50, 32), torch.randn(20, 32), batch_of([9], [4])
    with torch.device("meta"):
        for kind in ("soft", "hard", "lk", "topk"):
            results = training_time_test(head, embedding, rows, batch, 3, kind)
            assert total_loss(results, valid=valid_slots(batch, head.t2d, 3)).isfinite()
