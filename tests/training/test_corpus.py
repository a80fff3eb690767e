"""Corpus generation: answers are the target's own, interruptions lose and repeat nothing, bad input is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.training.answers import sample_rows
from eagle3_demo.training.batches import make_blocks, read_corpus
from eagle3_demo.training.corpus import (
    CorpusSettings,
    CorpusWriter,
    Progress,
    corpus_manifest,
    generate_corpus,
    is_held_out,
    read_prompts,
    target_fingerprint,
)

GREEDY = CorpusSettings(temperatures=(0.0,), max_new_tokens=12, max_prompt_tokens=20, batch_size=4)
PROMPTS = [[3 + n % 40, 9, 5 + n % 7, *range(4, 4 + n % 5)] for n in range(30)]


def run(
    model: PreTrainedModel, folder: Path, settings: CorpusSettings = GREEDY, tokens: int = 10**6
) -> Iterator[Progress]:
    manifest = corpus_manifest("tiny", target_fingerprint(model), ["same"], settings)
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


def test_other_settings_do_not_mix_into_a_folder(reference: PreTrainedModel, tmp_path: Path) -> None:
    list(run(reference, tmp_path, tokens=20))
    with pytest.raises(UserError, match="another settings"):
        run(reference, tmp_path, CorpusSettings(temperatures=(1.0,)))


def test_prompt_files(tmp_path: Path) -> None:
    lines = '{"prompt": "a\u2028b"}\n\n{"turns": ["second", "third"]}\n{"prompt": "a\u2028b"}\n'
    (tmp_path / "p.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "p.txt").write_text("plain\n", encoding="utf-8")
    assert read_prompts([tmp_path / "p.jsonl", tmp_path / "p.txt"]) == ["a\u2028b", "second", "plain"]


@pytest.mark.parametrize("text", ["{broken", '{"question": "x"}', '{"turns": []}', '{"prompt": 3}', "", "[1]"])
def test_malformed_prompt_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"p\.jsonl"):
        read_prompts([path])


def test_prompt_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for path, reason in ((tmp_path / "binary.jsonl", "not UTF-8"), (tmp_path, "cannot be read")):
        with pytest.raises(UserError, match=reason):
            read_prompts([path])


def test_damaged_shards_are_refused(reference: PreTrainedModel, tmp_path: Path) -> None:
    list(run(reference, tmp_path, tokens=60))
    shard = next(tmp_path.glob("shard-*"))
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(UserError, match="damaged"):
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
