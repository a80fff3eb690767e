"""The EAGLE-2 head against a plain forward, its cache against a fresh one, its checkpoints, and what it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.models.checkpoint import head_method, load_eagle2_head, load_head, save_head
from eagle3_demo.models.eagle2 import Eagle2Head
from eagle3_demo.models.head import HeadSession
from eagle3_demo.models.session import FINAL_STATE
from eagle3_demo.models.target import TargetModel
from tests.models.test_head import plain_layer
from tests.tiny_eagle2 import tiny_eagle2_head
from tests.tiny_head import tiny_head
from tests.tiny_target import tiny_target


def plain_forward(head: Eagle2Head, embeddings: Tensor, features: Tensor) -> Tensor:
    """All slots at once with a causal mask; [n, hidden]."""
    state = head.state_dict()
    x = torch.cat([embeddings, features], -1) @ state["fc.weight"].T + state["fc.bias"]
    return plain_layer(head, x, x)


def test_extending_equals_the_whole_forward(target: TargetModel) -> None:
    head = tiny_eagle2_head(target.lm_head)
    embeddings, features = torch.randn(9, 32), torch.randn(9, 32)
    expected = plain_forward(head, embeddings, features)
    session = HeadSession(head, 16)
    for start, end in ((0, 4), (4, 5), (5, 9)):
        state = session.extend(embeddings[start:end], features[start:end])
        torch.testing.assert_close(state, expected[end - 1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(head.logits(state), target.model.lm_head(expected[-1]), atol=1e-4, rtol=1e-4)


def test_drafting_on_its_own_features_equals_the_whole_forward(target: TargetModel) -> None:
    """A chain of two below five real slots: the head's own output stands where the next feature would."""
    head = tiny_eagle2_head(target.lm_head)
    embeddings, features = torch.randn(7, 32), torch.randn(5, 32)
    session = HeadSession(head, 16)
    state = session.extend(embeddings[:5], features)
    for depth in range(2):
        grown = plain_forward(head, embeddings[: 5 + depth], features)
        torch.testing.assert_close(state, grown[-1], atol=1e-5, rtol=1e-4)
        features = torch.cat([features, grown[-1:]])
        chain = torch.ones(1, depth + 1, dtype=torch.bool)
        state = session.expand(embeddings[5 + depth][None], head.feedback(state)[None], depth, chain, depth)[0]
    torch.testing.assert_close(state, plain_forward(head, embeddings, features)[-1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_feature_is_what_the_lm_head_reads(family: str, packed: bool) -> None:
    target = tiny_target(family, packed=packed)
    output = target.session(20, (FINAL_STATE,)).prefill([5, 17, 3, 29])
    assert output.taps is not None and output.taps.shape == (4, 32)
    torch.testing.assert_close(target.lm_head(output.taps)[-1:].float(), output.logits, atol=1e-4, rtol=1e-4)


def test_the_feature_is_transformers_last_hidden_state(target: TargetModel, reference: PreTrainedModel) -> None:
    ids = [5, 17, 3, 29]
    taps = target.session(20, (2, FINAL_STATE)).prefill(ids).taps
    assert taps is not None
    states = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(taps, torch.cat([states[2][0], states[-1][0]], -1), atol=1e-4, rtol=1e-4)


def test_other_negative_taps_are_refused(target: TargetModel) -> None:
    with pytest.raises(UserError, match="layers 0 to 7"):
        target.session(20, (-2,))
    with pytest.raises(ValueError):
        tiny_head(taps=(-1, 2, 3))


def test_a_checkpoint_comes_back_and_is_named_as_public_heads_are(target: TargetModel, tmp_path: Path) -> None:
    head = tiny_eagle2_head(target.lm_head)
    save_head(head, tmp_path, dtype=torch.float32)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {"fc.weight", "fc.bias", "layers.0.self_attn.q_proj.weight", "layers.0.mlp.up_proj.weight"} <= names
    assert not any("lm_head" in name or "embed" in name or name == "norm.weight" for name in names)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle"] and "draft_vocab_size" not in config
    assert head_method(tmp_path) == "eagle2"
    again = load_eagle2_head(tmp_path, vocabulary_size=280, hidden_size=32, target_lm_head=target.lm_head)
    assert again.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_each_kind_refuses_the_others_folder(target: TargetModel, tmp_path: Path) -> None:
    save_head(tiny_eagle2_head(target.lm_head), tmp_path / "two")
    save_head(tiny_head(vocabulary=280), tmp_path / "three")
    assert head_method(tmp_path / "three") == "eagle3"
    with pytest.raises(UserError, match="holds an EAGLE-2 head"):
        load_head(tmp_path / "two", vocabulary_size=280, hidden_size=32)
    with pytest.raises(UserError, match="holds an EAGLE-3 head"):
        load_eagle2_head(tmp_path / "three", vocabulary_size=280, hidden_size=32, target_lm_head=target.lm_head)
    with pytest.raises(UserError, match=r"config\.json is missing"):
        head_method(tmp_path)
    (tmp_path / "two" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        head_method(tmp_path / "two")
