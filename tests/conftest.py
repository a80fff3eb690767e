"""Fixtures that many tests share: a tiny random target, its reference model, and the embedded target."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from eagle3_demo import files
from eagle3_demo.models.embedded import embedded_target
from eagle3_demo.models.target import TargetModel
from tests.tiny_target import byte_level_tokenizer, metaspace_tokenizer, tiny_model, tiny_target


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, 280 tokens, three control tokens, a chat template."""
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Metaspace BPE with byte fallback."""
    return metaspace_tokenizer()


@pytest.fixture(scope="session")
def target() -> TargetModel:
    """A tiny random Llama in plain float32; the same weights as `reference`."""
    return tiny_target()


@pytest.fixture(scope="session")
def reference() -> PreTrainedModel:
    """The tiny random Llama as transformers runs it."""
    return tiny_model()


@pytest.fixture(scope="session")
def embedded_folder() -> Path:
    """The embedded target as a transformers folder; tests that use it are marked `real_model`."""
    return embedded_target()


@pytest.fixture(scope="session")
def embedded(embedded_folder: Path) -> TargetModel:
    """The embedded target as the demo runs it on the CPU: packed weights."""
    return TargetModel.load(embedded_folder, device="cpu")


@pytest.fixture(scope="session")
def embedded_float32(embedded_folder: Path) -> TargetModel:
    """The embedded target in plain float32."""
    return TargetModel.load(embedded_folder, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def embedded_reference(embedded_folder: Path) -> PreTrainedModel:
    """The embedded target as transformers runs it, in float32."""
    return AutoModelForCausalLM.from_pretrained(embedded_folder, dtype="float32").eval()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are written atomically find the disk full at their end; the error is that of /dev/full."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    replaced = files.write_atomically

    def onto_full_disk(path: Path, write: Callable[[Path], object]) -> None:
        def write_there(temporary: Path) -> None:
            write(temporary)
            Path("/dev/full").write_bytes(b"x")

        replaced(path, write_there)

    for name, module in list(sys.modules.items()):
        if name.startswith("eagle3_demo.") and getattr(module, "write_atomically", None) is replaced:
            monkeypatch.setattr(module, "write_atomically", onto_full_disk)
