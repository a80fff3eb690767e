"""A tiny random target and its head as folders, for commands that load from disk."""

from __future__ import annotations

from pathlib import Path

from eagle3_demo.models.checkpoint import save_head
from tests.tiny_head import tiny_head
from tests.tiny_target import byte_level_tokenizer, tiny_model


def save_tiny_pair(folder: Path) -> tuple[Path, Path]:
    """Writes both and returns their folders."""
    target, head = folder / "tiny-target", folder / "tiny-head"
    tiny_model().save_pretrained(target)
    byte_level_tokenizer().save_pretrained(target)
    save_head(tiny_head(vocabulary=280, draft_vocabulary=100, max_position_embeddings=256), head)
    return target, head
