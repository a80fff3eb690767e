"""The blocks of a GGUF file find the layers they are of, and the target that keeps them is the file's model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from eagle3_demo.errors import UserError
from eagle3_demo.models.gguf import convert_gguf
from eagle3_demo.models.gguf_blocks import load_blocks, split_blocks
from eagle3_demo.models.target import TargetModel
from tests.tiny_gguf import write_tiny_gguf

PROMPT = [5, 17, 60, 3, 44]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted quantised GGUF."""
    place = tmp_path_factory.mktemp("quantised")
    write_tiny_gguf(place / "tiny.gguf", quantised=True, intermediate_size=64)
    converted = place / "converted"
    converted.mkdir()
    convert_gguf(place / "tiny.gguf", converted, lambda fraction, doing: None)
    return converted


def test_every_layer_gets_its_own_blocks_in_its_own_order(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    blocks = load_blocks(folder, model)
    assert set(blocks) == {module for module in model.modules() if isinstance(module, nn.Linear)}
    for linear, rows in blocks.items():
        assert np.array_equal(split_blocks(rows, linear.in_features).weights(), linear.weight.detach().numpy())


def test_the_target_over_blocks_is_the_float32_model(folder: Path) -> None:
    target = TargetModel.load(folder, device="cpu")
    assert target.precision == "gguf" and "own 4- and 8-bit blocks" in target.accelerated
    plain = TargetModel.load(folder, device="cpu", dtype="float32")
    session, reference = (model.session(50, model.default_taps) for model in (target, plain))
    output, expected = session.prefill(PROMPT), reference.prefill(PROMPT)
    torch.testing.assert_close(output.logits, expected.logits, atol=1e-3, rtol=1e-4)


def test_a_folder_without_blocks_is_packed_as_float16_and_cannot_be_asked_for_blocks(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    converted = tmp_path / "converted"
    converted.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", converted, lambda fraction, doing: None)
    assert TargetModel.load(converted, device="cpu").precision == "packed16"
    with pytest.raises(UserError, match="not converted from a GGUF file with Q4_1 or Q8_0 blocks; give packed16"):
        TargetModel.load(converted, device="cpu", dtype="gguf")


def test_without_compiled_products_blocks_are_not_used_and_the_reason_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("target", "acceleration", "packed_linear"):
        monkeypatch.setattr(f"eagle3_demo.models.{module}.native_kernels", lambda: (None, "there is no C compiler"))
    target = TargetModel.load(folder, device="cpu")
    assert target.precision == "packed16"
    assert "FBGEMM kernels because there is no C compiler" in target.accelerated
    with pytest.raises(UserError, match="there is no C compiler; give packed16"):
        TargetModel.load(folder, device="cpu", dtype="gguf")
