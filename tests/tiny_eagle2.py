"""Tiny random EAGLE-2 heads for tests."""

from __future__ import annotations

import torch

from eagle3_demo.models.eagle2 import Eagle2Config, Eagle2Head, LanguageModelHead


def tiny_eagle2_head(
    target_lm_head: LanguageModelHead, vocabulary: int = 280, hidden: int = 32, seed: int = 0
) -> Eagle2Head:
    """A random head in evaluation mode."""
    torch.manual_seed(seed)
    config = Eagle2Config(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=vocabulary,
        max_position_embeddings=256,
    )
    return Eagle2Head(config, target_lm_head).eval().requires_grad_(False)
