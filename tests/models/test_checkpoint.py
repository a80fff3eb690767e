"""Head checkpoints: round-trips, what a public loader expects, and refusals that name what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_demo.errors import UserError
from eagle3_demo.models.checkpoint import load_head, save_head
from eagle3_demo.models.head import Eagle3Head
from tests.tiny_head import tiny_head


def saved(folder: Path, **flags: object) -> Eagle3Head:
    head = tiny_head(**flags)
    save_head(head, folder, dtype=torch.float32)
    return head


def load(folder: Path, vocabulary_size: int = 50, hidden_size: int = 32) -> Eagle3Head:
    return load_head(folder, vocabulary_size=vocabulary_size, hidden_size=hidden_size)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def reconfigure(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"norm_before_residual": True, "norm_before_fc": True},
        {"fc_norm": True, "norm_output": True},
        {"taps": (1, 4, 5), "rope_theta": 1e6},
    ],
)
def test_round_trip_is_bit_exact(tmp_path: Path, flags: dict[str, object]) -> None:
    head = saved(tmp_path, **flags)
    again = load(tmp_path)
    assert again.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_names_and_config_are_those_of_public_heads(tmp_path: Path) -> None:
    """eagle3_reference.md 2.2 and 2.6: no embeddings, no tap ids for default taps, offsets, never tied."""
    saved(tmp_path)
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", "midlayer.hidden_norm.weight"} <= tensors.keys()
    assert not any("embed_tokens" in name or "rotary" in name for name in tensors)
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["draft_vocab_size"] == 20
    assert config["tie_word_embeddings"] is False and "eagle_aux_hidden_state_layer_ids" not in config


def test_other_prefixes_and_layer_names_are_read(tmp_path: Path) -> None:
    head = saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {f"model.{name.replace('midlayer.', 'layers.0.')}": tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path).fc.weight, head.fc.weight)


def test_a_missing_mask_is_derived_and_a_missing_map_is_identity_only_at_full_size(tmp_path: Path) -> None:
    saved(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.pop("t2d"))
    assert load(tmp_path).t2d.sum() == 20
    rewrite(tmp_path, lambda tensors: tensors.pop("d2t"))
    with pytest.raises(UserError, match="no d2t"):
        load(tmp_path)


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda t: t.pop("fc.weight"), "lacks fc.weight"),
        (lambda t: t.update({"fc.bias": torch.zeros(32)}), "unknown tensors: fc.bias"),
        (lambda t: t.update({"fc.weight": torch.zeros(32, 32)}), r"fc.weight has shape \(32, 32\)"),
        (lambda t: t.update({"fc.weight": torch.zeros(32, 96, dtype=torch.int64)}), r"fc.weight holds int64"),
        (lambda t: t.update({"norm.weight": torch.full((32,), float("nan"))}), "norm.weight holds values"),
        (lambda t: t.update({"d2t": torch.arange(20) * 2}), "offsets"),
        (lambda t: t.update({"d2t": -torch.arange(20)}), "two draft tokens"),
        (lambda t: t.update({"d2t": torch.zeros(20, dtype=torch.long)}), "disagree"),
    ],
)
def test_wrong_tensors_are_refused_by_name(tmp_path: Path, change: Callable, message: str) -> None:
    saved(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing"):
        load(tmp_path)
    saved(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(UserError, match="damaged"):
        load(tmp_path)


def test_a_head_for_another_target_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(UserError, match="vocabulary of 50, the target has 60"):
        load(tmp_path, vocabulary_size=60)
    with pytest.raises(UserError, match="hidden states of 32, the target has 64"):
        load(tmp_path, hidden_size=64)
    reconfigure(tmp_path, num_hidden_layers=2)
    with pytest.raises(UserError, match="2 layers"):
        load(tmp_path)
