"""Tiny random heads for tests."""

from __future__ import annotations

from typing import Any

import torch

from eagle3_demo.models.head import Eagle3Config, Eagle3Head

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
"""Of a tiny head, of either kind."""


def tiny_head(
    vocabulary: int = 50, draft_vocabulary: int = 20, hidden: int = 32, seed: int = 0, **flags: Any
) -> Eagle3Head:
    """A random head in evaluation mode whose draft vocabulary is every second id."""
    torch.manual_seed(seed)
    sizes = SIZES | {"hidden_size": hidden, "intermediate_size": 2 * hidden}
    config = Eagle3Config(**sizes | {"vocab_size": vocabulary, "draft_vocab_size": draft_vocabulary} | flags)
    head = Eagle3Head(config).eval().requires_grad_(False)
    head.set_draft_vocabulary(torch.arange(draft_vocabulary) * 2)
    return head
