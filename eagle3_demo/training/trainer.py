"""The training loop: accelerate for device and precision, Muon and AdamW, resumable to the step.

A run folder holds `metrics.jsonl` (one line a report), `state.pt` (weights, optimisers, schedule position, random
state; replaced atomically) and the best head so far as a checkpoint (`head/`).

The learning rate warms up, stays, and falls to zero over the last part of the token budget, so that a run stopped
early or extended later loses nothing but its tail.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.nn import Parameter
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.models.checkpoint import save_head
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.head import Eagle3Head
from eagle3_demo.training.batches import TokenBlock
from eagle3_demo.training.features import FeatureSource
from eagle3_demo.training.training_time_test import StepResult, TrainingBatch, total_loss, training_time_test

Loss = Callable[[TrainingBatch, int], list[StepResult]]
"""A batch and the steps ahead to a result for each step; the steps that a loss does not have it leaves out."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How a head is trained; written into the run folder and checked on resume.

    Attributes:
        token_passes: answer tokens to train on, counted with repetition.
        steps_ahead: steps of the training-time test.
        ramp: share of the budget over which the steps ahead grow from one to their full number.
        learning_rate: AdamW's peak (LM head and norms); Muon's is `muon_learning_rate` (all other matrices).
        warmup: share of the budget over which the rate rises.
        decay: share of the budget over which it falls to zero at the end.
        step_decay: weight of step k is `step_decay` to the power k.
        rows_per_update: sequences in one optimiser step; a block is worked through in several.
        seed: for the order of blocks.
    """

    token_passes: int
    steps_ahead: int = 4
    ramp: float = 0.15
    learning_rate: float = 1e-3
    muon_learning_rate: float = 7e-3
    warmup: float = 0.01
    decay: float = 0.3
    step_decay: float = 0.8
    rows_per_update: int = 4
    clip: float = 0.5
    report_every: int = 25
    evaluate_every: int = 400
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """A line of `metrics.jsonl`.

    Attributes:
        kind: `training` (since the last report) or `held_out`.
        acceptance: share of slots where head and target make the same first choice, by step ahead.
        loss: mean loss, by step ahead.
    """

    kind: str
    step: int
    token_passes: int
    seconds: float
    tokens_per_second: float
    acceptance: list[float]
    loss: list[float]


class Tally:
    """Sums step results over batches."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def add(self, results: list[StepResult]) -> None:
        """Takes one batch's results."""
        while len(self.rows) < len(results):
            self.rows.append([0.0, 0.0, 0.0])
        for row, result in zip(self.rows, results, strict=False):
            row[0] += float(result.loss.detach()) * result.slots
            row[1] += float(result.matches)
            row[2] += result.slots

    def column(self, number: int) -> list[float]:
        """A mean by step ahead: 0 is loss, 1 acceptance."""
        return [round(row[number] / max(1.0, row[2]), 4) for row in self.rows]


class Trainer:
    """Trains one head on blocks of a corpus.

    Args:
        head: the head, float32.
        features: the frozen target's features; anything with its `model` and `batch`.
        folder: the run folder.
        resume: continue from `state.pt` in the folder.
        loss: what is minimised; None is the training-time test of an EAGLE-3 head.

    Raises:
        UserError: nothing to resume, or the state belongs to another head.
    """

    def __init__(
        self,
        head: DraftHead,
        features: FeatureSource,
        settings: TrainingSettings,
        folder: Path,
        *,
        resume: bool = False,
        mixed_precision: str = "no",
        loss: Loss | None = None,
    ) -> None:
        self.features, self.settings, self.folder = features, settings, folder
        self.accelerator = Accelerator(mixed_precision=mixed_precision, cpu=features.model.device.type == "cpu")
        self.head = head.train()
        model = features.model
        matrices, rest = _split_parameters(head)
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=settings.muon_learning_rate, weight_decay=0.01, momentum=0.95),
            torch.optim.AdamW(rest, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.peak_rates = (settings.muon_learning_rate, settings.learning_rate)
        self.step = self.token_passes = self.pass_number = self.block_number = 0
        self.seconds = 0.0
        self.best = -1.0
        folder.mkdir(parents=True, exist_ok=True)
        if resume:
            self._load_state()
        # After the state: a resumed head keeps its draft vocabulary, even where the corpus has grown since.
        self.loss = loss or eagle3_loss(head, model)

    def run(self, training: list[TokenBlock], held_out: list[TokenBlock]) -> Iterator[Report]:
        """Trains until the token budget is spent, yielding reports.

        Raises:
            UserError: the loss is no longer finite; the last good state stays on disk.
        """
        tally, since, tokens = Tally(), time.perf_counter(), 0
        while self.token_passes < self.settings.token_passes:
            order = random.Random(f"{self.settings.seed}:{self.pass_number}").sample(training, len(training))
            for block in order[self.block_number :]:
                for results in self._train_on(block):
                    tally.add(results)
                self.block_number += 1
                self.step += 1
                self.token_passes += block.answer_tokens
                tokens += block.answer_tokens
                done = self.token_passes >= self.settings.token_passes
                if self.step % self.settings.report_every == 0 or done:
                    elapsed = time.perf_counter() - since
                    self.seconds += elapsed
                    yield self._report("training", tally, tokens / elapsed)
                    tally, since, tokens = Tally(), time.perf_counter(), 0
                if self.step % self.settings.evaluate_every == 0 or done:
                    report = self._evaluate(held_out)
                    self.save_state()
                    yield report
                    since = time.perf_counter()
                if done:
                    return
            self.pass_number, self.block_number = self.pass_number + 1, 0

    def _train_on(self, block: TokenBlock) -> Iterator[list[StepResult]]:
        progress = self.token_passes / self.settings.token_passes
        for batch in self.features.batch(block).split(self.settings.rows_per_update):
            with self.accelerator.autocast():
                steps = self._steps(progress)
                results = self.loss(batch, steps)
            loss = total_loss(results, self.settings.step_decay)
            if not math.isfinite(loss.item()):
                raise UserError(
                    f"training diverged at step {self.step} (loss {loss.item()}); the last good state is in "
                    f"{self.folder}; resume with a lower learning rate"
                )
            loss.backward()
            self._update(progress)
            yield results

    def _update(self, progress: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.settings.clip)
        for optimizer, peak in zip(self.optimizers, self.peak_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * self._rate(progress)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _steps(self, progress: float) -> int:
        full = self.settings.steps_ahead
        if progress >= self.settings.ramp:
            return full
        return 1 + int((full - 1) * progress / self.settings.ramp)

    def _rate(self, progress: float) -> float:
        rising = (progress + 1e-4) / max(self.settings.warmup, 1e-9)
        falling = (1 - progress) / max(self.settings.decay, 1e-9)
        return max(0.0, min(1.0, rising, falling))

    @torch.no_grad()
    def _evaluate(self, held_out: list[TokenBlock]) -> Report:
        tally = Tally()
        self.head.eval()
        for block in held_out:
            with self.accelerator.autocast():
                steps = self.settings.steps_ahead
                batch = self.features.batch(block)
                tally.add(self.loss(batch, steps))
        self.head.train()
        report = self._report("held_out", tally, 0.0)
        score = sum(report.acceptance)
        if score > self.best:
            self.best = score
            save_head(self.head, self.folder / "head")
        return report

    def _report(self, kind: str, tally: Tally, speed: float) -> Report:
        report = Report(
            kind=kind,
            step=self.step,
            token_passes=self.token_passes,
            seconds=round(self.seconds, 1),
            tokens_per_second=round(speed, 1),
            acceptance=tally.column(1),
            loss=tally.column(0),
        )
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")
        return report

    def save_state(self) -> None:
        """Writes everything a resumed run needs, whole or not at all."""
        state = {
            "head": self.head.state_dict(),
            "config": self.head.config.model_dump(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "position": self._position(),
            "random": torch.get_rng_state(),
        }
        write_atomically(self.folder / "state.pt", lambda temporary: torch.save(state, temporary))

    def _position(self) -> dict[str, Any]:
        names = ("step", "token_passes", "pass_number", "block_number", "seconds", "best")
        return {name: getattr(self, name) for name in names}

    def _load_state(self) -> None:
        path = self.folder / "state.pt"
        if not path.is_file():
            raise UserError(f"nothing to resume: {path} does not exist; start without --resume")
        state = torch.load(path, map_location=self.features.model.device, weights_only=True)
        if state["config"] != self.head.config.model_dump():
            raise UserError(f"{path} belongs to a head of another shape; give the settings it was started with")
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for name, value in state["position"].items():
            setattr(self, name, value)
        torch.set_rng_state(state["random"].cpu())


def eagle3_loss(head: DraftHead, model: PreTrainedModel) -> Loss:
    """The training-time test of an EAGLE-3 head against its target."""
    assert isinstance(head, Eagle3Head)
    embedding = model.get_input_embeddings().weight.detach()
    ids = head.target_ids(torch.arange(head.config.draft_vocab_size, device=head.d2t.device))
    target_lm_head = model.get_output_embeddings().weight.detach()[ids]
    return lambda batch, steps: training_time_test(head, embedding, target_lm_head, batch, steps)


def _split_parameters(head: DraftHead) -> tuple[list[Parameter], list[Parameter]]:
    """Muon's matrices (fusion, attention, MLP) and AdamW's rest (LM head, norms)."""
    matrices: list[Parameter] = []
    rest: list[Parameter] = []
    for name, parameter in head.named_parameters():
        if name.startswith("embed_tokens"):
            parameter.requires_grad_(False)
        elif parameter.ndim == 2 and not name.startswith("lm_head"):
            matrices.append(parameter)
        else:
            rest.append(parameter)
    return matrices, rest
