"""Corpus generation: answers are the target's own, interruptions lose and repeat nothing, bad input is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.training.answers import sample_rows
from eagle3_demo.training.batches import make_blocks, read_corpus
from eagle3_demo.training.bfloat16_weights import processor_multiplies_bfloat16, reorder_weights
from eagle3_demo.training.corpus import CorpusWriter, Progress, generate_corpus, is_held_out
from eagle3_demo.training.manifest import CorpusSettings, corpus_manifest, target_fingerprint, weights_digest
from eagle3_demo.training.slot_cache import SLOT_ATTENTION

GREEDY = CorpusSettings(temperatures=(0.0,), max_new_tokens=12, max_prompt_tokens=20, batch_size=4)
PROMPTS = [[3 + n % 40, 9, 5 + n % 7, *range(4, 4 + n % 5)] for n in range(30)]


def identity_of(model: PreTrainedModel) -> dict[str, str]:
    return {"target": "tiny", "fingerprint": target_fingerprint(model)}


def run(
    model: PreTrainedModel, folder: Path, settings: CorpusSettings = GREEDY, tokens: int = 10**6
) -> Iterator[Progress]:
    manifest = corpus_manifest(identity_of(model), [("same",)], settings)
    return generate_corpus(model, PROMPTS, frozenset({2}), CorpusWriter(folder, manifest, 4), settings, tokens)


def answers(folder: Path) -> dict[tuple[int, ...], list[int]]:
    """Every answer by its prompt."""
    corpus = read_corpus(folder)
    found = {}
    for sequence in [s for group in (corpus.training, corpus.held_out) for shard in group for s in shard]:
        ids = sequence.tokens.astype(int)
        found[tuple(ids[~sequence.answer])] = ids[sequence.answer].tolist()
    return found


def test_answers_are_what_the_target_generates_alone(reference: PreTrainedModel, tmp_path: Path) -> None:
    """Rows at different lengths in a refilled batch equal one `generate` a prompt."""
    list(run(reference, tmp_path))
    found = answers(tmp_path)
    assert len(found) == len({tuple(prompt) for prompt in PROMPTS})
    for prompt in PROMPTS[::5]:
        ids = torch.tensor([prompt])
        alone = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=2
        )
        assert found[tuple(prompt)] == alone[0, len(prompt) :].tolist()


def test_an_interrupted_run_resumes_without_loss_or_repetition(reference: PreTrainedModel, tmp_path: Path) -> None:
    interrupted = run(reference, tmp_path)
    for _ in range(7):
        next(interrupted)
    interrupted.close()
    assert 0 < sum(len(shard) for shard in read_corpus(tmp_path).training) < len(PROMPTS)
    list(run(reference, tmp_path))
    corpus = read_corpus(tmp_path)
    assert sum(len(shard) for shard in corpus.training + corpus.held_out) == len(PROMPTS)


def test_a_budget_ends_the_run(reference: PreTrainedModel, tmp_path: Path) -> None:
    last = list(run(reference, tmp_path, tokens=40))[-1]
    assert 40 <= last.answer_tokens < 40 + 12


def test_every_tensor_is_made_on_the_targets_device(reference: PreTrainedModel, tmp_path: Path) -> None:
    """With another default device a tensor that is made anywhere else cannot meet the model's own."""
    with torch.device("meta"):
        list(run(reference, tmp_path, replace(GREEDY, temperatures=(0.0, 1.0)), tokens=60))
    assert answers(tmp_path)


def test_the_target_attends_as_before_after_a_run(reference: PreTrainedModel, tmp_path: Path) -> None:
    before = reference.config._attn_implementation
    interrupted = run(reference, tmp_path)
    next(interrupted)
    assert reference.config._attn_implementation == SLOT_ATTENTION
    interrupted.close()
    assert reference.config._attn_implementation == before


def test_a_manifest_of_an_older_version_stays_resumable(reference: PreTrainedModel, tmp_path: Path) -> None:
    """Keys that older versions did not write are not asked for; values that they wrote are."""
    list(run(reference, tmp_path, tokens=20))
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["settings"]["follow_up_share"]
    path.write_text(json.dumps(manifest))
    settings = replace(GREEDY, batch_size=2)
    identity = {"target": "renamed", "fingerprint": manifest["fingerprint"], "template_sha256": "new"}
    CorpusWriter(tmp_path, corpus_manifest(identity, [("same",)], settings))
    for changed in ({"follow_up_share": 0.5}, {"seed": 1}):
        with pytest.raises(UserError, match=f"settings .{next(iter(changed))}"):
            CorpusWriter(tmp_path, corpus_manifest(identity, [("same",)], replace(settings, **changed)))
    with pytest.raises(UserError, match="another fingerprint"):
        CorpusWriter(tmp_path, corpus_manifest(identity | {"fingerprint": "x"}, [("same",)], settings))


def test_a_fingerprint_does_not_depend_on_precision(reference: PreTrainedModel) -> None:
    half = copy.deepcopy(reference).to(torch.bfloat16)
    assert target_fingerprint(half) == target_fingerprint(reference)
    assert weights_digest(half) == weights_digest(reference)
    half.model.layers[3].mlp.up_proj.weight.data.mul_(1.1)
    assert target_fingerprint(half) == target_fingerprint(reference)
    assert weights_digest(half) != weights_digest(reference)


@pytest.mark.skipif(not processor_multiplies_bfloat16(), reason="this processor has no bfloat16 products")
def test_reordered_weights_give_the_same_answers(reference: PreTrainedModel) -> None:
    model = copy.deepcopy(reference).to(torch.bfloat16)
    ids = torch.arange(3, 40).view(1, -1)
    expected = model(input_ids=ids).logits
    assert reorder_weights(model, rows=4) and not reorder_weights(copy.deepcopy(reference), rows=4)
    torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=0.1, rtol=0.05)


def test_other_settings_do_not_mix_into_a_folder(reference: PreTrainedModel, tmp_path: Path) -> None:
    list(run(reference, tmp_path, tokens=20))
    with pytest.raises(UserError, match="another settings"):
        run(reference, tmp_path, CorpusSettings(temperatures=(1.0,)))


def test_a_full_disk_ends_the_run_and_leaves_nothing_half_written(
    reference: PreTrainedModel, tmp_path: Path, full_disk: None
) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(corpus_manifest(identity_of(reference), [("same",)], GREEDY)))
    with pytest.raises(UserError, match=r"no space left on the disk for .*shard-"):
        list(run(reference, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_damaged_shards_are_refused(reference: PreTrainedModel, tmp_path: Path) -> None:
    list(run(reference, tmp_path, tokens=60))
    shard = next(tmp_path.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:50])
    for reading in (read_corpus, lambda folder: list(run(reference, folder))):
        with pytest.raises(UserError, match="damaged"):
            reading(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        read_corpus(tmp_path)
    with pytest.raises(UserError, match="not a corpus"):
        read_corpus(tmp_path / "nowhere")


def test_sampling_by_row_follows_each_rows_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(6000, 1)
    temperatures = torch.tensor([0.0, 1.0]).repeat_interleave(3000)
    tokens = sample_rows(logits, temperatures, generator)
    assert tokens[:3000].eq(2).all()
    seen = torch.bincount(tokens[3000:], minlength=3) / 3000
    torch.testing.assert_close(seen, torch.softmax(logits[0], -1), atol=0.03, rtol=0)


def test_blocks_hold_every_sequence_once_right_aligned(reference: PreTrainedModel, tmp_path: Path) -> None:
    list(run(reference, tmp_path))
    corpus = read_corpus(tmp_path)
    blocks = make_blocks(corpus.training, positions=64)
    kept = [s for shard in corpus.training for s in shard if s.answer.sum() >= 3]
    assert sum(len(block.tokens) for block in blocks) == len(kept)
    assert sum(block.answer_tokens for block in blocks) == sum(int(s.answer.sum()) for s in kept)
    for block in blocks:
        assert block.tokens.numel() <= 64 or len(block.tokens) == 1
        assert block.real[:, -1].all() and not (block.answer & ~block.real).any()
    assert [b.name for b in blocks] == [b.name for b in make_blocks(corpus.training, positions=64)]
    assert sum(is_held_out(n) for n in range(5000)) == pytest.approx(5000 / 43, rel=0.3)
