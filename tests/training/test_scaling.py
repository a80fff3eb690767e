"""Fractions are nested and as large as asked; a folder belongs to one plan."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from eagle3_demo.errors import UserError
from eagle3_demo.training.batches import TokenBlock
from eagle3_demo.training.scaling import answer_counts, claim_folder, fraction_of, learning_curve

PLAN = {"corpus_sha256": "a", "training": {"token_passes": 10}}


def block(number: int, answers: int) -> TokenBlock:
    tokens = torch.full((1, 12), number)
    answer = torch.arange(12)[None] >= 12 - answers
    return TokenBlock(tokens, torch.ones_like(answer), answer, f"block-{number}")


BLOCKS = [block(number, 3 + number % 8) for number in range(60)]


def test_fractions_are_nested_and_hold_their_share() -> None:
    total = sum(one.answer_tokens for one in BLOCKS)
    names: list[set[str]] = []
    for fraction in (0.125, 0.25, 0.5, 1.0):
        chosen = fraction_of(BLOCKS, fraction, seed=3)
        held = sum(one.answer_tokens for one in chosen)
        assert fraction * total <= held < fraction * total + 11
        names.append({one.name for one in chosen})
    assert all(small < large for small, large in itertools.pairwise(names))
    assert len(names[-1]) == len(BLOCKS)
    assert [one.name for one in fraction_of(BLOCKS, 0.25, 4)] != [one.name for one in fraction_of(BLOCKS, 0.25, 3)]


def test_counts_are_of_answers_only() -> None:
    counts = answer_counts([block(2, 3), block(5, 4), block(2, 1)], 8)
    assert counts.tolist() == [0, 0, 4, 0, 0, 4, 0, 0]


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        claim_folder(tmp_path / "new", PLAN, resume=True)
    claim_folder(tmp_path / "new", PLAN, resume=False)
    claim_folder(tmp_path / "new", PLAN, resume=True)
    with pytest.raises(UserError, match="add --resume"):
        claim_folder(tmp_path / "new", PLAN, resume=False)
    with pytest.raises(UserError, match="another training"):
        claim_folder(tmp_path / "new", PLAN | {"training": {"token_passes": 11}}, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "state.pt").touch()
    with pytest.raises(UserError, match="something else"):
        claim_folder(tmp_path / "other", PLAN, resume=False)
    (tmp_path / "new" / "plan.json").write_text("[]")
    with pytest.raises(UserError, match="damaged"):
        claim_folder(tmp_path / "new", PLAN, resume=True)


def test_a_learning_curve_holds_the_held_out_reports(tmp_path: Path) -> None:
    lines = [
        {"kind": "training", "token_passes": 5, "acceptance": [0.1]},
        {"kind": "held_out", "token_passes": 9, "acceptance": [0.2, 0.1]},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    curve = learning_curve("a run", tmp_path)
    assert curve == {"name": "a run", "points": [{"token_passes": 9, "acceptance": [0.2, 0.1]}]}
    path.write_text("{\n", encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        learning_curve("a run", tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="no held-out"):
        learning_curve("a run", tmp_path)
