"""The trainer: resumed equals uninterrupted, the loss falls, divergence stops, features from disk are the same."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.models.checkpoint import load_head
from eagle3_demo.models.head import Eagle3Head, sorted_draft_ids
from eagle3_demo.training.batches import Sequence, TokenBlock, make_blocks
from eagle3_demo.training.features import TargetFeatures
from eagle3_demo.training.initial_head import head_config, initial_head
from eagle3_demo.training.trainer import Trainer, TrainingSettings

SETTINGS = TrainingSettings(token_passes=400, steps_ahead=3, evaluate_every=4, report_every=2, seed=1)


@pytest.fixture(scope="module")
def blocks(reference: PreTrainedModel) -> list[TokenBlock]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 200, (12, 5), generator=generator)
    whole = reference.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=2).numpy()
    answer = whole.copy().astype(bool)
    answer[:, :5], answer[:, 5:] = False, True
    return make_blocks([[Sequence(row, mask) for row, mask in zip(whole, answer, strict=True)]], 64)


def new_head(reference: PreTrainedModel) -> Eagle3Head:
    torch.manual_seed(0)
    ids = sorted_draft_ids(torch.arange(280).flip(0), 200)
    return initial_head(reference, head_config(reference, 200, None), ids)


def trainer(reference: PreTrainedModel, folder: Path, settings: TrainingSettings = SETTINGS, resume: bool = False):
    return Trainer(new_head(reference), TargetFeatures(reference, (2, 4, 5)), settings, folder, resume=resume)


def test_a_resumed_run_equals_the_uninterrupted_one(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    """Weights, optimiser moments, schedule and order of blocks all survive (faults B38)."""
    whole = trainer(reference, tmp_path / "whole")
    list(whole.run(blocks, blocks[:1]))
    first = trainer(reference, tmp_path / "parts")
    for report in first.run(blocks, blocks[:1]):
        if report.kind == "held_out":
            break
    second = trainer(reference, tmp_path / "parts", resume=True)
    assert second.step == first.step > 0
    list(second.run(blocks, blocks[:1]))
    assert (second.step, second.token_passes) == (whole.step, whole.token_passes)
    for name, tensor in whole.head.state_dict().items():
        torch.testing.assert_close(second.head.state_dict()[name], tensor, atol=1e-6, rtol=1e-5)


def test_training_helps_and_keeps_the_best_head(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    settings = TrainingSettings(token_passes=2400, steps_ahead=2, evaluate_every=8, report_every=8)
    reports = list(trainer(reference, tmp_path, settings).run(blocks, blocks))
    held_out = [report for report in reports if report.kind == "held_out"]
    assert held_out[-1].loss[0] < held_out[0].loss[0]
    assert max(report.acceptance[0] for report in held_out) > 0.3
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [report.step for report in reports]
    assert load_head(tmp_path / "head", vocabulary_size=280, hidden_size=32).config.draft_vocab_size == 200


def test_divergence_stops_with_the_last_good_state(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    run = trainer(reference, tmp_path)
    events = run.run(blocks, blocks[:1])
    while next(events).kind != "held_out":
        pass
    run.head.fc.weight.data.fill_(math.nan)
    with pytest.raises(UserError, match="diverged"):
        list(events)
    again = trainer(reference, tmp_path, resume=True)
    assert all(parameter.isfinite().all() for parameter in again.head.parameters())


def test_resuming_nothing_or_another_head_is_refused(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        trainer(reference, tmp_path, resume=True)
    trainer(reference, tmp_path).save_state()
    other = initial_head(reference, head_config(reference, 100, None), torch.arange(100))
    with pytest.raises(UserError, match="another shape"):
        Trainer(other, TargetFeatures(reference, (2, 4, 5)), SETTINGS, tmp_path, resume=True)


def test_features_from_disk_are_those_computed(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    fresh = TargetFeatures(reference, (2, 4, 5))
    kept = TargetFeatures(reference, (2, 4, 5), tmp_path, budget_bytes=10**7)
    for _ in range(2):
        expected, actual = fresh.batch(blocks[0]), kept.batch(blocks[0])
        for name in ("taps", "final", "choice"):
            assert torch.equal(getattr(expected, name), getattr(actual, name))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    states = reference(input_ids=blocks[0].tokens, output_hidden_states=True).hidden_states
    torch.testing.assert_close(actual.taps[..., 32:64], states[4])
    TargetFeatures(reference, (2, 4, 5), tmp_path / "none", budget_bytes=10).batch(blocks[0])
    assert not list((tmp_path / "none").glob("*.safetensors"))
