"""The trainer: resumed equals uninterrupted, the loss falls, divergence stops, features from disk are the same."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
from tests.training import two_processes

SETTINGS = TrainingSettings(token_passes=400, steps_ahead=3, evaluate_every=4, report_every=2, seed=1)


@pytest.fixture(scope="module")
def blocks(answered: tuple[np.ndarray, np.ndarray]) -> list[TokenBlock]:
    return make_blocks([[Sequence(row, mask) for row, mask in zip(*answered, strict=True)]], 64)


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
    files = [tmp_path / name for name in ("state.pt", "head/model.safetensors", "head/config.json")]
    kept = [file.read_bytes() for file in files]
    run.head.fc.weight.data.fill_(math.nan)
    with pytest.raises(UserError, match=rf"diverged at step {run.step} \(loss nan\); the last good state is"):
        list(events)
    assert [file.read_bytes() for file in files] == kept
    again = trainer(reference, tmp_path, resume=True)
    assert all(parameter.isfinite().all() for parameter in again.head.parameters())


def test_a_gradient_that_is_not_finite_changes_no_weight(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    run = trainer(reference, tmp_path)
    before = {name: tensor.clone() for name, tensor in run.head.state_dict().items()}
    run.head.fc.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(UserError, match=r"norm of the gradient .*no state was saved yet"):
        list(run.run(blocks, blocks[:1]))
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.head.state_dict().items())


def test_a_full_disk_ends_the_run_with_the_last_state(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path, full_disk: None
) -> None:
    run = trainer(reference, tmp_path)
    with pytest.raises(UserError, match=r"no space left on the disk for .*model\.safetensors"):
        list(run.run(blocks, blocks[:1]))
    with pytest.raises(UserError, match=r"no space left on the disk for .*state\.pt"):
        run.save_state()
    assert not list(tmp_path.rglob("*.pt")) and not list(tmp_path.rglob("*.safetensors"))


def test_gradients_add_up_over_an_update(reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path) -> None:
    """An update worked through row by row is the update in one forward (mean over all its slots, not over rows)."""
    heads = []
    for rows in (None, 1):
        run = trainer(reference, tmp_path / str(rows), replace(SETTINGS, token_passes=150, rows_at_once=rows))
        list(run.run(blocks, blocks[:1]))
        heads.append(run.head.state_dict())
    for name, tensor in heads[0].items():
        torch.testing.assert_close(heads[1][name], tensor, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("changes", [{"optimizer": "adamw"}, {"loss": "hard"}, {"loss": "lk"}, {"loss": "topk"}])
def test_every_choice_trains(
    changes: dict[str, Any], reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    settings = replace(SETTINGS, token_passes=1200, steps_ahead=2, evaluate_every=8, **changes)
    reports = [r for r in trainer(reference, tmp_path, settings).run(blocks, blocks) if r.kind == "held_out"]
    assert reports[-1].loss[0] < reports[0].loss[0]


def test_every_tensor_is_made_on_the_targets_device(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    """With another default device a tensor that is made anywhere else cannot meet the model's own."""
    run = trainer(reference, tmp_path)
    with torch.device("meta"):
        for results in run._train_on(blocks[:1]):
            assert results[0].loss.isfinite()
        run._evaluate(blocks[:1])


def test_two_processes_make_the_updates_of_one(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    """`accelerate launch` on two CPU processes: equal weights, those of one process with both blocks in an update."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    script = Path(__file__).with_name("two_processes.py")
    done = subprocess.run([*launch, script, tmp_path], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (torch.load(tmp_path / f"rank-{n}.pt", weights_only=True) for n in range(2))
    alone = Trainer(
        two_processes.head(reference), TargetFeatures(reference, (2, 4, 5)), two_processes.SETTINGS, tmp_path / "alone"
    )
    list(alone.run(two_processes.in_one_block(), two_processes.in_one_block()))
    for name, tensor in alone.head.state_dict().items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], tensor, atol=1e-4, rtol=1e-3)
    lines = [(tmp_path / folder / "metrics.jsonl").read_text().splitlines() for folder in ("both", "alone")]
    acceptance = [[json.loads(line)["acceptance"] for line in part] for part in lines]
    assert acceptance[0] == acceptance[1]


def test_resuming_nothing_or_another_head_is_refused(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        trainer(reference, tmp_path, resume=True)
    trainer(reference, tmp_path).save_state()
    with pytest.raises(UserError, match="trained with optimizer muon, loss soft"):
        trainer(reference, tmp_path, replace(SETTINGS, optimizer="adamw", loss="lk", learning_rate=1.0), resume=True)
    other = initial_head(reference, head_config(reference, 100, None), torch.arange(100))
    with pytest.raises(UserError, match="another shape"):
        Trainer(other, TargetFeatures(reference, (2, 4, 5)), SETTINGS, tmp_path, resume=True)
    (tmp_path / "state.pt").write_bytes((tmp_path / "state.pt").read_bytes()[:999])
    with pytest.raises(UserError, match="damaged"):
        trainer(reference, tmp_path, resume=True)


def test_a_run_begun_by_an_older_version_is_resumed(reference: PreTrainedModel, tmp_path: Path) -> None:
    trainer(reference, tmp_path).save_state()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    del state["settings"], state["cuda_random"]
    torch.save(state, tmp_path / "state.pt")
    trainer(reference, tmp_path, resume=True)


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
