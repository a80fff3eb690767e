"""Tiny random EAGLE-2 heads for tests."""

from __future__ import annotations

import torch

from eagle3_demo.models.eagle2 import Eagle2Config, Eagle2Head, LanguageModelHead
from tests.tiny_head import SIZES


def tiny_eagle2_head(target_lm_head: LanguageModelHead, vocabulary: int = 280, seed: int = 0) -> Eagle2Head:
    """A random head in evaluation mode."""
    torch.manual_seed(seed)
    config = Eagle2Config(**SIZES, vocab_size=vocabulary, max_position_embeddings=256)
    return Eagle2Head(config, target_lm_head).eval().requires_grad_(False)
