"""Which preset runs where, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_demo.errors import UserError
from eagle3_demo.presets import EMBEDDED, PRESETS, Machine, Preset, find_preset, obstacle

SMALL = Machine(memory=16.0, gpu=None, gpu_memory=0.0)
LAPTOP_GPU = Machine(memory=64.0, gpu="a card", gpu_memory=8.0)
SERVER = Machine(memory=256.0, gpu="a card", gpu_memory=141.0)


def reason(name: str, machine: Machine, *, logged_in: bool = False, cached: bool = False) -> str | None:
    """Why a preset cannot run on a machine."""
    return obstacle(find_preset(name), machine, logged_in=logged_in, cached=cached)


def test_names_are_unique_and_found() -> None:
    assert len({preset.name for preset in PRESETS}) == len(PRESETS)
    assert all(find_preset(preset.name) is preset for preset in PRESETS)
    with pytest.raises(UserError, match="qwen3-8b"):
        find_preset("qwen3-9b")


def test_memory_decides() -> None:
    assert reason("qwen3-1.7b", SMALL) is None
    assert "40 GB of memory" in (reason("qwen3-8b", SMALL) or "")
    assert "a card has 8" in (reason("qwen3-8b", LAPTOP_GPU) or "")
    assert reason("qwen3-32b", SERVER) is None
    assert "150 GB" in (reason("llama-3.3-70b-instruct", SERVER, logged_in=True) or "")


def test_a_gated_target_needs_a_login_or_its_files() -> None:
    assert "gated" in (reason("llama-3.1-8b-instruct", SERVER) or "")
    assert reason("llama-3.1-8b-instruct", SERVER, logged_in=True) is None
    assert reason("llama-3.1-8b-instruct", SERVER, cached=True) is None


def test_the_embedded_pair_needs_its_head(tmp_path: Path) -> None:
    bare = Preset("bare", "target", str(tmp_path), "apache-2.0", False, 1.0, embedded=True)
    assert "head is missing" in (obstacle(bare, SMALL, logged_in=False, cached=False) or "")
    (tmp_path / "model.safetensors").touch()
    assert obstacle(bare, SMALL, logged_in=False, cached=False) is None
    assert "2 GB" in (obstacle(bare, Machine(1.0, None, 0.0), logged_in=False, cached=False) or "")
    assert EMBEDDED is PRESETS[0]
