"""A head's first weights: what comes from the target, what from another head, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.models.checkpoint import save_head
from eagle3_demo.training.initial_head import HeadChoice, Start, first_head
from tests.tiny_head import tiny_head

COUNTS = torch.arange(280).flip(0)


@pytest.mark.parametrize(("start", "copied"), [("plain", 0), ("lm-head", 1), ("full", 2)])
def test_starts_take_more_and_more_from_the_target(reference: PreTrainedModel, start: Start, copied: int) -> None:
    head = first_head(reference, HeadChoice(200, start=start), COUNTS, [2, 279])
    ids = head.target_ids(torch.arange(200))
    assert {2, 279} <= set(ids.tolist())
    last = reference.model.layers[-1]
    same = [
        torch.equal(head.lm_head.weight, reference.lm_head.weight[ids]),
        torch.equal(head.midlayer.mlp.up_proj.weight, last.mlp.up_proj.weight),
    ]
    assert same == [copied > 0, copied > 1]


def test_taps_are_kept_in_the_head(reference: PreTrainedModel) -> None:
    assert first_head(reference, HeadChoice(64, (0, 3, 7)), COUNTS, []).config.taps == (0, 3, 7)
    assert first_head(reference, HeadChoice(64, (2, 4, 5)), COUNTS, []).config.taps is None
    for taps in ((1, 2), (3, 2, 5), (2, 2, 5), (-1, 2, 5), (2, 4, 8)):
        with pytest.raises(UserError, match="from 0 to 7"):
            first_head(reference, HeadChoice(64, taps), COUNTS, [])


def test_a_draft_vocabulary_beyond_the_targets_is_refused(reference: PreTrainedModel) -> None:
    assert first_head(reference, HeadChoice(280), COUNTS, []).t2d.all()
    with pytest.raises(UserError, match="--draft-vocab 280 or less"):
        first_head(reference, HeadChoice(281), COUNTS, [])


def test_a_head_goes_on_with_its_own_vocabulary_and_taps(reference: PreTrainedModel, tmp_path: Path) -> None:
    old = tiny_head(vocabulary=280, draft_vocabulary=100, taps=(1, 3, 6))
    save_head(old, tmp_path / "head", torch.float32)
    head = first_head(reference, HeadChoice(64, folder=tmp_path / "head"), COUNTS, [])
    assert head.config.taps == (1, 3, 6) and torch.equal(head.d2t, old.d2t)
    assert torch.equal(head.fc.weight, old.fc.weight) and head.fc.weight.requires_grad
    save_head(tiny_head(vocabulary=280, draft_vocabulary=100, taps=(1, 3, 8)), tmp_path / "deep")
    save_head(tiny_head(vocabulary=99), tmp_path / "other")
    for name, reason in (("deep", "taps layer 8"), ("other", "vocabulary of 99"), ("none", "no head")):
        with pytest.raises(UserError, match=reason):
            first_head(reference, HeadChoice(64, folder=tmp_path / name), COUNTS, [])
