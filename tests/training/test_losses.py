"""The losses against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle3_demo.training.losses import LossKind, SoftCrossEntropy, token_losses


@pytest.fixture
def rows() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 30, generator=generator).requires_grad_()
    target = torch.softmax(3 * torch.randn(6, 30, generator=generator), -1)
    return logits, target, target.argmax(-1)


def test_soft_cross_entropy_equals_torchs(rows: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, _ = rows
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    actual = SoftCrossEntropy.apply(logits, target)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn(6)
    ours, theirs = (torch.autograd.grad((loss * weights).sum(), logits)[0] for loss in (actual, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_hard_is_the_cross_entropy_to_the_first_choice(rows: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, choice = rows
    expected = -torch.log_softmax(logits, -1)[torch.arange(6), choice]
    torch.testing.assert_close(token_losses("hard", logits, target, choice), expected)


def test_topk_adds_the_ten_most_likely_tokens_once_more(rows: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, choice = rows
    parts = -target * torch.log_softmax(logits, -1)
    likely = target >= target.topk(10, -1).values[:, -1:]
    actual = token_losses("topk", logits, target, choice)
    expected = parts.sum(-1) + (parts * likely).sum(-1)
    torch.testing.assert_close(actual, expected)
    ours, theirs = (torch.autograd.grad(loss.sum(), logits)[0] for loss in (actual, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_lk_goes_from_divergence_to_total_variation(rows: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, choice = rows
    q = torch.softmax(logits, -1)
    variation = (q - target).abs().sum(-1) / 2
    divergence = (target * (target / q).log()).sum(-1)
    share = torch.exp(-3 * (1 - variation))
    expected = share * divergence + (1 - share) * variation
    torch.testing.assert_close(token_losses("lk", logits, target, choice), expected)


@pytest.mark.parametrize("kind", ["soft", "lk"])
def test_the_target_itself_is_the_best(kind: LossKind, rows: tuple[Tensor, Tensor, Tensor]) -> None:
    _, target, choice = rows
    best = token_losses(kind, target.log(), target, choice)
    for _ in range(5):
        assert (token_losses(kind, target.log() + 0.3 * torch.randn(6, 30), target, choice) > best).all()
