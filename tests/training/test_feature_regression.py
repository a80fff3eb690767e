"""EAGLE-2's loss against incremental drafting and by hand, and training with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from eagle3_demo.models.checkpoint import load_eagle2_head
from eagle3_demo.models.head import HeadSession
from eagle3_demo.models.session import FINAL_STATE
from eagle3_demo.training.batches import Sequence, TokenBlock, make_blocks
from eagle3_demo.training.feature_regression import FeatureRegression, initial_eagle2_head
from eagle3_demo.training.features import SomeTaps, TargetFeatures
from eagle3_demo.training.trainer import Trainer, TrainingSettings
from eagle3_demo.training.training_time_test import supervised_slots
from tests.tiny_eagle2 import tiny_eagle2_head


@pytest.fixture(scope="module")
def blocks(answered: tuple[np.ndarray, np.ndarray]) -> list[TokenBlock]:
    rows = [Sequence(row[n % 3 :], mask[n % 3 :]) for n, (row, mask) in enumerate(zip(*answered, strict=True))]
    return make_blocks([rows], 64)


def test_predictions_equal_incremental_drafting(reference: PreTrainedModel, blocks: list[TokenBlock]) -> None:
    """What training computes at a slot is what a draft with a cache computes after the same prefix."""
    head = tiny_eagle2_head(reference.get_output_embeddings())
    batch = TargetFeatures(reference, (FINAL_STATE,)).batch(blocks[0])
    slots = supervised_slots(batch)
    predicted = FeatureRegression(head, reference)._predict(batch, slots)
    embedding = reference.get_input_embeddings().weight
    for number in range(0, len(slots.rows), 5):
        row, slot = int(slots.rows[number]), int(slots.columns[number])
        start = int((~batch.real[row]).sum())
        session = HeadSession(head, 40)
        tokens = batch.tokens[row, start + 1 : slot + 2]
        state = session.extend(embedding[tokens].detach(), batch.taps[row, start : slot + 1])
        torch.testing.assert_close(predicted[number], state, atol=1e-4, rtol=1e-4)


def test_the_loss_is_smooth_l1_and_a_tenth_of_the_cross_entropy(
    reference: PreTrainedModel, blocks: list[TokenBlock]
) -> None:
    head = tiny_eagle2_head(reference.get_output_embeddings())
    loss = FeatureRegression(head, reference)
    batch = TargetFeatures(reference, (FINAL_STATE,)).batch(blocks[0])
    (result,) = loss(batch, 4)
    slots = supervised_slots(batch)
    predicted, label = loss._predict(batch, slots), batch.taps[slots.rows, slots.columns + 1]
    target = torch.softmax(head.logits(label), -1)
    tokens = functional.cross_entropy(head.logits(predicted), target)
    torch.testing.assert_close(result.loss, functional.smooth_l1_loss(predicted, label) + 0.1 * tokens)
    assert result.slots == int((batch.answer[:, 1:-1] & batch.answer[:, 2:]).sum())
    assert 0 <= int(result.matches) <= result.slots


def test_a_head_that_predicts_the_real_feature_agrees_everywhere(
    reference: PreTrainedModel, blocks: list[TokenBlock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels, choices and slots are aligned: the target's own feature makes the target's own choice."""
    loss = FeatureRegression(tiny_eagle2_head(reference.get_output_embeddings()), reference)
    monkeypatch.setattr(loss, "_predict", lambda batch, slots: batch.taps[slots.rows, slots.columns + 1])
    batch = TargetFeatures(reference, (FINAL_STATE,)).batch(blocks[0])
    (result,) = loss(batch)
    assert int(result.matches) == result.slots


def test_noise_is_bounded_and_only_in_training(reference: PreTrainedModel, blocks: list[TokenBlock]) -> None:
    head = tiny_eagle2_head(reference.get_output_embeddings())
    batch = TargetFeatures(reference, (FINAL_STATE,)).batch(blocks[0])
    quiet, noisy = FeatureRegression(head, reference, 0.0), FeatureRegression(head, reference, 0.1)
    assert noisy(batch)[0].loss == quiet(batch)[0].loss
    head.train()
    read: list[torch.Tensor] = []
    head.fuse = lambda taps: read.append(taps) or taps  # type: ignore[method-assign]
    assert noisy(batch)[0].loss != quiet(batch)[0].loss
    assert 0.05 < float((read[0] - batch.taps).abs().max()) <= 0.1
    assert torch.equal(read[1], batch.taps)


def test_an_unsupervised_batch_is_refused(reference: PreTrainedModel, blocks: list[TokenBlock]) -> None:
    batch = TargetFeatures(reference, (FINAL_STATE,)).batch(blocks[0])
    loss = FeatureRegression(tiny_eagle2_head(reference.get_output_embeddings()), reference)
    with pytest.raises(ValueError, match="no supervised slot"):
        loss(replace(batch, answer=torch.zeros_like(batch.answer)))


def test_training_lowers_the_loss_resumes_and_keeps_a_head_that_loads(
    reference: PreTrainedModel, blocks: list[TokenBlock], tmp_path: Path
) -> None:
    features = SomeTaps(TargetFeatures(reference, (2, 4, 5, FINAL_STATE)), 3, 4)

    def trainer(passes: int, resume: bool = False) -> Trainer:
        settings = TrainingSettings(token_passes=passes, evaluate_every=8, report_every=8)
        torch.manual_seed(0)
        head = initial_eagle2_head(reference)
        return Trainer(head, features, settings, tmp_path, resume=resume, loss=FeatureRegression(head, reference))

    first = trainer(1200)
    reports = [report for report in first.run(blocks, blocks) if report.kind == "held_out"]
    assert reports[-1].loss[0] < reports[0].loss[0]
    second = trainer(1800, resume=True)
    assert (second.step, second.token_passes) == (first.step, first.token_passes)
    torch.testing.assert_close(second.head.state_dict()["fc.weight"], first.head.state_dict()["fc.weight"])
    list(second.run(blocks, blocks))
    lm_head = reference.get_output_embeddings()
    load_eagle2_head(tmp_path / "head", vocabulary_size=280, hidden_size=32, target_lm_head=lm_head)


def test_some_taps_are_those_of_a_source_of_their_own(reference: PreTrainedModel, blocks: list[TokenBlock]) -> None:
    shared = TargetFeatures(reference, (2, 4, 5, FINAL_STATE))
    for taps, (first, last) in (((2, 4, 5), (0, 3)), ((FINAL_STATE,), (3, 4))):
        own = TargetFeatures(reference, taps).batch(blocks[0])
        assert torch.equal(SomeTaps(shared, first, last).batch(blocks[0]).taps, own.taps)
