"""A packed head drafts what the same head over its rounded weights drafts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from eagle3_demo.models.acceleration import pack_head
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.eagle2 import Eagle2Config, Eagle2Head
from eagle3_demo.models.gguf_blocks import split_blocks
from eagle3_demo.models.head import HeadSession
from eagle3_demo.models.packed_linear import eight_bit_blocks
from tests.tiny_head import tiny_head

FLAGS = [{}, {"norm_before_residual": True}, {"fc_norm": True, "norm_output": True}, {"max_position_embeddings": 4}]


def rounded(head: DraftHead) -> DraftHead:
    """A copy over the values that 8-bit blocks hold."""
    copied = copy.deepcopy(head)
    linears = [module for module in copied.modules() if isinstance(module, nn.Linear)]
    for linear, rows in eight_bit_blocks(*linears).items():
        linear.weight.copy_(torch.from_numpy(split_blocks(rows, linear.in_features).weights()))
    return copied


def drafted(head: DraftHead, taps: int) -> list[torch.Tensor]:
    """Two extensions, two levels of a tree, and an extension that forgets them: the state after each."""
    generator = torch.Generator().manual_seed(1)

    def some(rows: int, width: int = 64) -> torch.Tensor:
        return torch.randn(rows, width, generator=generator)

    session = HeadSession(head, 40)
    states = [session.extend(some(6), some(6, taps * 64)), session.extend(some(1), some(1, taps * 64))]
    siblings = torch.eye(3, dtype=torch.bool)
    states.append(session.expand(some(3), head.feedback(states[-1]).expand(3, -1), 0, siblings, 0))
    below = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 1]], dtype=torch.bool)
    states.append(session.expand(some(2), head.feedback(states[-1])[[0, 2]], 1, below, 3))
    states.append(session.extend(some(2), some(2, taps * 64)))
    return [*states, head.logits(states[-1][None])]


@pytest.mark.parametrize("flags", FLAGS)
def test_eagle3(flags: dict[str, object]) -> None:
    head = tiny_head(hidden=64, head_dim=16, **flags)
    expected = drafted(rounded(head), 3)
    pack_head(head)
    assert head.fused is not None and head.fused.takes(6)
    for found, wanted in zip(drafted(head, 3), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_eagle2() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    lm_head = nn.Linear(64, 50, bias=False)
    head = Eagle2Head(Eagle2Config(**sizes, head_dim=16, vocab_size=50), lm_head).eval().requires_grad_(False)
    expected = drafted(rounded(head), 1)
    pack_head(head)
    assert head.fused is not None
    for found, wanted in zip(drafted(head, 1), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_without_compiled_kernels_the_head_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("acceleration", "packed_linear", "attention"):
        monkeypatch.setattr(f"eagle3_demo.models.{module}.native_kernels", lambda: (None, "switched off"))
    head = tiny_head(hidden=64, head_dim=16)
    expected = drafted(head, 3)
    pack_head(head)
    assert head.fused is None
    for found, wanted in zip(drafted(head, 3), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-2, rtol=1e-2)
