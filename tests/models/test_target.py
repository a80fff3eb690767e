"""The target against transformers' own forward: prefill, taps, trees, commits, families, refusals, threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.models import session as session_module
from eagle3_demo.models.packed_linear import PackedLinear
from eagle3_demo.models.session import TREE_ROWS, TargetSession
from eagle3_demo.models.target import TargetModel
from tests.tiny_target import byte_level_tokenizer, tiny_model, tiny_target

PROMPT = [5, 80, 33, 9, 120, 77, 200, 41, 6, 19]
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 16}),
    ("gpt_neox", {}),
    ("phi3", {"pad_token_id": 0}),
    ("granite", {"logits_scaling": 2.0, "residual_multiplier": 0.5}),
]


def random_tree(nodes: int, seed: int) -> tuple[Tensor, Tensor, Tensor, list[list[int]]]:
    """Tokens, depths, mask and, for every node, its path from the root."""
    generator = random.Random(seed)
    parents = [-1] + [generator.randrange(node) for node in range(1, nodes)]
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if node else []), node])
    mask = torch.zeros(nodes, nodes, dtype=torch.bool)
    for node, path in enumerate(paths):
        mask[node, path] = True
    tokens = torch.tensor([generator.randrange(3, 280) for _ in range(nodes)])
    return tokens, torch.tensor([len(path) - 1 for path in paths]), mask, paths


@torch.no_grad()
def forward(model: PreTrainedModel, ids: list[int], taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """transformers' logits and tapped hidden states of a whole sequence."""
    output = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return output.logits[0].float(), torch.cat([output.hidden_states[layer][0] for layer in taps], -1)


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-4) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def started(target: TargetModel, prompt: list[int] = PROMPT, capacity: int = 100) -> TargetSession:
    session = target.session(capacity, target.default_taps)
    session.prefill(prompt)
    return session


@pytest.mark.parametrize("family,changes", FAMILIES)
def test_every_family_equals_transformers(family: str, changes: dict[str, Any]) -> None:
    target, reference = tiny_target(family, **changes), tiny_model(family, **changes)
    session = target.session(100, target.default_taps)
    first = session.prefill(PROMPT)
    logits, taps = forward(reference, PROMPT, target.default_taps)
    assert_close(first.logits, logits[-1:])
    assert first.taps is not None
    assert_close(first.taps, taps)
    tokens, depths, mask, paths = random_tree(9, seed=1)
    tree = session.verify(tokens, depths, mask)
    assert tree.taps is not None
    for node, path in enumerate(paths):
        logits, taps = forward(reference, PROMPT + tokens[path].tolist(), target.default_taps)
        assert_close(tree.logits[node], logits[-1])
        assert_close(tree.taps[node], taps[-1])


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """The model with the linear weights that packing keeps: rounded to float16."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.detach().half().float())
    return model


@pytest.mark.parametrize("family,changes", FAMILIES)
def test_packing_rounds_linear_weights_and_changes_nothing_else(family: str, changes: dict[str, Any]) -> None:
    target = tiny_target(family, packed=True, **changes)
    assert target.packed and "float16 packed" in target.accelerated
    assert not any(type(module) is nn.Linear for module in target.model.modules())
    assert any(isinstance(module, PackedLinear) for module in target.model.modules())
    untied = changes | {"tie_word_embeddings": False}
    reference = tiny_model(family, **changes)
    if changes.get("tie_word_embeddings"):
        separate = tiny_model(family, **untied)
        separate.load_state_dict(reference.state_dict() | {"lm_head.weight": reference.lm_head.weight.clone()})
        reference = separate
    session = target.session(100, target.default_taps)
    output = session.prefill(PROMPT)
    logits, taps = forward(rounded(reference), PROMPT, target.default_taps)
    assert output.taps is not None
    assert_close(output.logits, logits[-1:], 1e-3)
    assert_close(output.taps, taps, 1e-3)
    embeddings = tiny_model(family, **changes).get_input_embeddings()(torch.tensor(PROMPT))
    assert torch.equal(target.embed(torch.tensor(PROMPT)), embeddings)


def test_the_packed_model_still_runs_through_transformers() -> None:
    target = tiny_target(packed=True)
    session = target.session(50)
    with torch.inference_mode():
        logits = target.model(torch.tensor([[*PROMPT, 7], [*PROMPT[::-1], 7]])).logits
    assert_close(session.prefill(PROMPT).logits[0], logits[0, -2])
    assert_close(session.verify(torch.tensor([7]), torch.tensor([0]), None).logits[0], logits[0, -1])


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 2, 5], [0, 4, 7, 8]])
def test_commit_equals_a_fresh_prefill(target: TargetModel, path: list[int]) -> None:
    tokens, depths, mask, _ = random_tree(9, seed=2)
    mask = torch.eye(9, dtype=torch.bool)
    mask[:, 0] = True
    for index, node in enumerate(path):
        mask[node, path[:index]] = True
        depths[node] = index
    session = started(target)
    session.verify(tokens, depths, mask)
    session.commit(path)
    kept = PROMPT + tokens[path].tolist()
    assert session.length == len(kept)
    fresh = started(target, kept)
    probe = (torch.tensor([11, 12]), torch.tensor([0, 1]), torch.ones(2, 2, dtype=torch.bool).tril())
    assert_close(session.verify(*probe).logits, fresh.verify(*probe).logits)


def test_what_is_not_committed_leaves_no_trace(target: TargetModel) -> None:
    tokens, depths, mask, _ = random_tree(9, seed=3)
    session, untouched = started(target), started(target)
    session.verify(tokens, depths, mask)
    session.commit([])
    one = (torch.tensor([9]), torch.tensor([0]), None)
    assert torch.equal(session.verify(*one).logits, untouched.verify(*one).logits)


@pytest.mark.parametrize("path", [[9], [0, -1], [0, 1, 12]])
def test_commit_refuses_nodes_that_were_not_verified(target: TargetModel, path: list[int]) -> None:
    tokens, depths, mask, _ = random_tree(9, seed=3)
    session = started(target)
    session.verify(tokens, depths, mask)
    with pytest.raises(IndexError):
        session.commit(path)
    assert session.length == len(PROMPT)


@pytest.mark.parametrize("size", [1, 3, 4, 10])
def test_prefill_in_slices_equals_prefill_at_once(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    whole = target.session(100, target.default_taps).prefill(PROMPT)
    monkeypatch.setattr(session_module, "PREFILL_SLICE", size)
    session = target.session(100, target.default_taps)
    told: list[tuple[int, int]] = []
    sliced = session.prefill(PROMPT, lambda read, total: told.append((read, total)))
    assert session.length == len(PROMPT)
    assert told == ([(read, 10) for read in range(0, 10, size)] if size < 10 else [])
    assert whole.taps is not None and sliced.taps is not None
    assert_close(sliced.logits, whole.logits)
    assert_close(sliced.taps, whole.taps)


def test_prefill_continues_and_reset_forgets(target: TargetModel) -> None:
    session = target.session(100)
    session.prefill(PROMPT[:4])
    continued = session.prefill(PROMPT[4:])
    session.reset()
    again = session.prefill(PROMPT)
    assert continued.taps is None
    assert session.length == len(PROMPT)
    assert_close(continued.logits, again.logits)


def test_shapes_types_and_facts(target: TargetModel) -> None:
    assert (target.layers, target.hidden_size, target.vocabulary_size, target.max_context) == (8, 32, 280, 256)
    assert target.default_taps == (2, 4, 5)
    assert target.end_tokens == {2}
    session = target.session(20, (0, 7))
    output = session.prefill(PROMPT)
    assert output.taps is not None
    assert (output.logits.shape, output.taps.shape) == ((1, 280), (10, 64))
    assert output.logits.dtype == torch.float32
    assert torch.equal(output.taps[:, :32], target.embed(torch.tensor(PROMPT)))


def test_half_precision_gives_float32_logits_and_taps_of_the_model() -> None:
    target = TargetModel.wrap(tiny_model().bfloat16(), byte_level_tokenizer(), packed=True, name="half")
    output = target.session(20, target.default_taps).prefill(PROMPT)
    assert output.taps is not None
    assert (output.logits.dtype, output.taps.dtype) == (torch.float32, torch.bfloat16)
    assert not target.packed
    assert "because packing needs float32 on the CPU" in target.accelerated


def test_weights_beyond_float16_are_not_packed() -> None:
    model = tiny_model()
    model.model.layers[3].mlp.up_proj.weight.data[0, 0] = 70000.0
    target = TargetModel.wrap(model, byte_level_tokenizer(), packed=True, name="large")
    assert not target.packed
    assert "70000 does not fit float16" in target.accelerated


def test_a_full_session_still_verifies_one_tree(target: TargetModel) -> None:
    session = target.session(len(PROMPT))
    session.prefill(PROMPT)
    order = torch.arange(TREE_ROWS)
    session.verify(order + 3, torch.zeros_like(order), torch.eye(TREE_ROWS, dtype=torch.bool))
    with pytest.raises(ValueError, match="do not fit"):
        session.verify(torch.arange(TREE_ROWS + 1), order, torch.eye(TREE_ROWS + 1, dtype=torch.bool))


def test_wrong_calls_are_refused(target: TargetModel) -> None:
    session = started(target)
    with pytest.raises(ValueError, match="mask"):
        session.verify(torch.tensor([1, 2]), torch.tensor([0, 1]), None)
    with pytest.raises(ValueError, match="nothing"):
        session.prefill([])
    with pytest.raises(UserError, match="300 positions do not fit tiny-llama, which has a context of 256"):
        target.session(300)
    for taps in [(2, 4, 8), (-2, 2, 3), ()]:
        with pytest.raises(UserError, match="layers 0 to 7"):
            target.session(10, taps)


def play(target: TargetModel, seed: int) -> list[Tensor]:
    """A session with its own prompt and trees; the logits of every step."""
    generator = random.Random(seed)
    session = target.session(200, target.default_taps)
    seen = [session.prefill([generator.randrange(3, 280) for _ in range(5 + seed)]).logits]
    for step in range(6):
        tokens, depths, mask, paths = random_tree(7, seed=100 * seed + step)
        seen.append(session.verify(tokens, depths, mask).logits)
        session.commit(paths[generator.randrange(7)])
    return seen


def test_sessions_in_threads_equal_sessions_one_after_the_other() -> None:
    target = tiny_target(packed=True)
    serial = [play(target, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(lambda seed: play(target, seed), range(4)))
    for one, other in zip(serial, parallel, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert torch.equal(ours, theirs)


def test_interleaved_sessions_do_not_meet(target: TargetModel) -> None:
    alone = started(target).verify(torch.tensor([9]), torch.tensor([0]), None).logits
    one, other = started(target), started(target, PROMPT[::-1])
    other.verify(torch.tensor([30]), torch.tensor([0]), None)
    other.commit([0])
    assert torch.equal(one.verify(torch.tensor([9]), torch.tensor([0]), None).logits, alone)


@pytest.mark.parametrize(
    "family,changes,reason",
    [
        ("llama", {"num_hidden_layers": 5}, "5 layers"),
        ("mistral", {"sliding_window": 64}, "sliding window of 64"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rotary frequencies",
        ),
        ("bloom", {"n_layer": 8, "n_head": 4}, "takes no position_ids"),
        ("mamba", {}, "linear attention"),
        ("falcon", {"alibi": True}, "does not run over a tree"),
    ],
)
def test_untappable_models_are_refused_by_name(family: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as refusal:
        tiny_target(family, **changes)
    assert f"tiny-{family}" in str(refusal.value)


@pytest.mark.parametrize("family,reason", [("t5", "encoder-decoder"), ("gemma2", "sliding attention"), ("jamba", "")])
def test_refusals_come_before_the_weights(tmp_path: Path, family: str, reason: str) -> None:
    AutoConfig.for_model(family).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"cannot be used.*{reason}"):
        TargetModel.load(tmp_path, device="cpu")


def test_load_reads_a_folder_and_tells_its_progress(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    told: list[float] = []
    target = TargetModel.load(tmp_path, device="cpu", progress=lambda fraction, doing: told.append(fraction))
    assert target.packed
    assert told == sorted(told) and told[-1] == 1.0
    plain = TargetModel.load(tmp_path, device="cpu", dtype="float32")
    assert not plain.packed
    assert_close(plain.session(50).prefill(PROMPT).logits, tiny_target().session(50).prefill(PROMPT).logits)


@pytest.mark.parametrize(
    "arguments,message",
    [
        ({"dtype": "int3"}, "dtype = 'int3'"),
        ({"device": "quantum"}, "device = 'quantum'"),
        ({}, "target .* cannot be loaded"),
    ],
)
def test_load_says_what_is_wrong(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TargetModel.load(tmp_path, **arguments)


def test_token_texts_are_readable(target: TargetModel) -> None:
    ids = target.tokenizer("one é", add_special_tokens=False)["input_ids"]
    texts = [target.token_text(token) for token in ids]
    assert texts[0].startswith("o")
    assert not any("\ufffd" in text or not text for text in texts)
    assert target.token_text(2) == "<|im_end|>"


@pytest.mark.real_model
def test_threads_do_not_change_the_embedded_model(embedded: TargetModel) -> None:
    threads = torch.get_num_threads()
    tokens, depths, mask, _ = random_tree(6, seed=4)
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(started(embedded, capacity=64).verify(tokens, depths, mask).logits.argmax(-1))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.real_model
def test_packing_hardly_moves_the_embedded_models_logits(
    embedded: TargetModel, embedded_reference: PreTrainedModel
) -> None:
    """Rounding the weights to float16 moves this model's logits by about 0.03."""
    text = "The sea was calm that morning, and the fishermen were already on their way out of the harbour."
    ids = embedded.tokenizer(text)["input_ids"]
    expected, _ = forward(embedded_reference, ids, embedded.default_taps)
    for length in range(4, len(ids), 4):
        logits = embedded.session(64).prefill(ids[:length]).logits[0]
        assert float((logits - expected[length - 1]).abs().max()) < 0.1


def test_an_unknown_family_that_ignores_the_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt_neox")
    forward = model.forward

    def deaf(
        self: Any,
        *args: Any,
        attention_mask: Tensor | None = None,
        position_ids: Any = None,
        cache: Any = None,
        **rest: Any,
    ) -> Any:
        blind = None if attention_mask is None else torch.zeros_like(attention_mask)
        return forward(*args, attention_mask=blind, position_ids=position_ids, cache=cache, **rest)

    monkeypatch.setattr(model, "forward", deaf.__get__(model))
    with pytest.raises(UserError, match=r"'tiny' .gpt_neox. cannot be used: over a tree its logits differ"):
        TargetModel.wrap(model, byte_level_tokenizer(), packed=False, name="tiny")


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_packed_trees_rows_are_plain_decodings_bit_for_bit(family: str) -> None:
    target = tiny_target(family, packed=True, hidden_size=64, head_dim=16)
    tokens, depths, mask, paths = random_tree(9, seed=3)
    session = target.session(60, target.default_taps)
    session.prefill(PROMPT)
    tree = session.verify(tokens, depths, mask)
    assert tree.taps is not None
    for node, path in enumerate(paths):
        plain = target.session(60, target.default_taps)
        plain.prefill(PROMPT)
        for token in tokens[path]:
            output = plain.verify(token[None], torch.tensor([0]), None)
            plain.commit([0])
        assert output.taps is not None
        assert torch.equal(output.logits[0], tree.logits[node])
        assert torch.equal(output.taps[0], tree.taps[node])
