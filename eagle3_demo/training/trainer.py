"""The training loop: accelerate for devices, processes and precision, resumable to the step.

A run folder holds `metrics.jsonl` (one line a report), `curve.html` (the same, drawn), `state.pt` (weights, optimisers,
schedule position, random state; replaced atomically) and the best head so far as a checkpoint (`head/`).

The learning rate warms up, stays, and falls to zero over the last part of the token budget, so that a run stopped
early or extended later loses nothing but its tail.

Several processes (`accelerate launch`) take different blocks. Losses are normalised by the valid slots of all of them
and gradients are summed, so that an update is the one that a single process would make of all the rows together.
"""

from __future__ import annotations

import math
import pickle
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.models.checkpoint import save_head
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.head import Eagle3Head
from eagle3_demo.training.batches import TokenBlock
from eagle3_demo.training.features import FeatureSource
from eagle3_demo.training.losses import LossKind
from eagle3_demo.training.metrics import Report, Tally, append_report, forget_after, write_curve
from eagle3_demo.training.optimizers import OptimizerName, make_optimizers, scheduled_share
from eagle3_demo.training.training_time_test import (
    StepResult,
    TrainingBatch,
    total_loss,
    training_time_test,
    valid_slots,
)

FIXED_SETTINGS = ("optimizer", "loss", "seed")
"""What a resumed run cannot change."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How a head is trained; kept in the run's state and checked on resume.

    Attributes:
        token_passes: answer tokens to train on, counted with repetition.
        steps_ahead: steps of the training-time test.
        ramp: share of the budget over which the steps ahead grow from one to their full number.
        optimizer: `muon` (Muon and AdamW) or `adamw`.
        learning_rate: AdamW's peak; Muon's is `muon_learning_rate`.
        warmup: share of the budget over which the rate rises.
        decay: share of the budget over which it falls to zero at the end.
        loss: what is minimised at each step (training/losses.py).
        step_decay: weight of step k is `step_decay` to the power k.
        rows_per_update: sequences in one optimiser step of each process; a block is worked through in several.
        rows_at_once: sequences in one forward; gradients add up over an update. None takes an update in one.
        clip: largest norm of a gradient.
        report_every, evaluate_every, save_every: in blocks that each process has worked through.
        seed: for the order of blocks.
    """

    token_passes: int
    steps_ahead: int = 4
    ramp: float = 0.15
    optimizer: OptimizerName = "muon"
    learning_rate: float = 1e-3
    muon_learning_rate: float = 7e-3
    warmup: float = 0.01
    decay: float = 0.3
    loss: LossKind = "soft"
    step_decay: float = 0.8
    rows_per_update: int = 4
    rows_at_once: int | None = None
    clip: float = 0.5
    report_every: int = 25
    evaluate_every: int = 400
    save_every: int = 100
    seed: int = 0


class Loss(Protocol):
    """What a head is trained by."""

    def __call__(self, batch: TrainingBatch, steps_ahead: int) -> list[StepResult]:
        """A result for each step ahead, or for as many as this loss has."""

    def valid(self, batch: TrainingBatch, steps_ahead: int) -> Tensor:
        """The slots that each step's loss is a mean of, int64 [steps], known without running the head."""


class Eagle3Loss:
    """The training-time test of an EAGLE-3 head against its target."""

    def __init__(self, head: DraftHead, model: PreTrainedModel, kind: LossKind) -> None:
        assert isinstance(head, Eagle3Head)
        self.head, self.kind = head, kind
        self.embedding = model.get_input_embeddings().weight.detach()
        ids = head.target_ids(torch.arange(head.config.draft_vocab_size, device=head.d2t.device))
        self.target_lm_head = model.get_output_embeddings().weight.detach()[ids]

    def __call__(self, batch: TrainingBatch, steps_ahead: int) -> list[StepResult]:
        """One result a step."""
        return training_time_test(self.head, self.embedding, self.target_lm_head, batch, steps_ahead, self.kind)

    def valid(self, batch: TrainingBatch, steps_ahead: int) -> Tensor:
        """Slots whose choice the draft vocabulary has, int64 [steps]."""
        return valid_slots(batch, self.head.t2d, steps_ahead)


class Trainer:
    """Trains one head on blocks of a corpus.

    Args:
        head: the head, float32, on the target's device.
        features: the frozen target's features; anything with its `model` and `batch`.
        folder: the run folder.
        resume: continue from `state.pt` in the folder.
        loss: what is minimised; None is the training-time test of an EAGLE-3 head.

    Raises:
        UserError: nothing to resume, or the state is damaged, of another head, or of other settings.
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
        self.device = features.model.device
        self.accelerator = Accelerator(mixed_precision=mixed_precision, cpu=self.device.type == "cpu")
        self.head = head.train()
        self.optimizers = make_optimizers(head, settings.optimizer, settings.learning_rate, settings.muon_learning_rate)
        self.peak_rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.step = self.token_passes = self.pass_number = self.block_number = 0
        self.seconds = 0.0
        self.best = -1.0
        folder.mkdir(parents=True, exist_ok=True)
        if resume:
            self._load_state()
        elif self.accelerator.is_main_process:
            forget_after(folder, -1)
        for tensor in self.head.state_dict().values():
            broadcast(tensor)
        # After the state: a resumed head keeps its draft vocabulary, even where the corpus has grown since.
        self.loss = loss or Eagle3Loss(head, features.model, settings.loss)

    def run(self, training: list[TokenBlock], held_out: list[TokenBlock]) -> Iterator[Report]:
        """Trains until the token budget is spent, yielding reports.

        Raises:
            UserError: loss or gradient is no longer finite, or the disk is full; the last good state stays on disk.
        """
        settings, together = self.settings, self.accelerator.num_processes
        tally, since, tokens = self._tally(), time.perf_counter(), 0
        while self.token_passes < settings.token_passes:
            order = random.Random(f"{settings.seed}:{self.pass_number}").sample(training, len(training))
            while self.block_number < len(order):
                blocks = order[self.block_number : self.block_number + together]
                for results in self._train_on(blocks):
                    tally.add(results)
                worked = sum(block.answer_tokens for block in blocks)
                self.block_number += len(blocks)
                self.step += 1
                self.token_passes += worked
                tokens += worked
                done = self.token_passes >= settings.token_passes
                if self.step % settings.report_every == 0 or done:
                    elapsed = time.perf_counter() - since
                    self.seconds += elapsed
                    yield self._report("training", tally, tokens / elapsed)
                    tally, since, tokens = self._tally(), time.perf_counter(), 0
                if self.step % settings.evaluate_every == 0 or done:
                    report = self._evaluate(held_out)
                    self.save_state()
                    yield report
                    since = time.perf_counter()
                elif self.step % settings.save_every == 0:
                    self.save_state()
                if done:
                    return
            self.pass_number, self.block_number = self.pass_number + 1, 0

    def _train_on(self, blocks: list[TokenBlock]) -> Iterator[list[StepResult]]:
        """Works through this process's block; all processes make as many updates as the longest block needs."""
        progress, rows = self.token_passes / self.settings.token_passes, self.settings.rows_per_update
        number = self.accelerator.process_index
        updates = self.features.batch(blocks[number]).split(rows) if number < len(blocks) else []
        for update in range(max(-(-len(block.tokens) // rows) for block in blocks)):
            yield from self._update(updates[update : update + 1], progress)

    def _update(self, batches: list[TrainingBatch], progress: float) -> Iterator[list[StepResult]]:
        """One optimiser step on a batch of this process (none where it has run out) and those of the others."""
        steps = self._steps(progress)
        parts = [part for batch in batches for part in batch.split(self.settings.rows_at_once or len(batch.tokens))]
        valid = [self.loss.valid(part, steps) for part in parts]
        whole = sum(valid, torch.zeros(steps, dtype=torch.long, device=self.device))
        whole = self.accelerator.reduce(whole, "sum")
        if not int(whole.sum()):
            return
        loss = torch.zeros((), device=self.device)
        for part, own in zip(parts, valid, strict=True):
            if int(own.sum()):
                with self.accelerator.autocast():
                    results = self.loss(part, steps)
                part_loss = total_loss(results, self.settings.step_decay, whole)
                part_loss.backward()
                loss += part_loss.detach()
                yield results
        self._refuse_divergence("loss", self.accelerator.reduce(loss, "sum"))
        self._sum_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.settings.clip)
        self._refuse_divergence("norm of the gradient", norm)
        share = scheduled_share(progress, self.settings.warmup, self.settings.decay)
        for optimizer, peak in zip(self.optimizers, self.peak_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _sum_gradients(self) -> None:
        """Every process gets the sum of all; it is the mean over all valid slots, since losses are shares of it."""
        if self.accelerator.num_processes == 1:
            return
        trained = [parameter for parameter in self.head.parameters() if parameter.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        summed = self.accelerator.reduce(torch.cat([gradient.flatten() for gradient in gradients]), "sum")
        for parameter, part in zip(trained, summed.split([p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter)

    def _refuse_divergence(self, what: str, value: Tensor) -> None:
        if math.isfinite(number := value.item()):
            return
        kept = "the last good state is" if (self.folder / "state.pt").is_file() else "no state was saved yet"
        raise UserError(
            f"training diverged at step {self.step} ({what} {number}); {kept} in {self.folder}; "
            "resume or start with a lower learning rate"
        )

    def _steps(self, progress: float) -> int:
        full = self.settings.steps_ahead
        if progress >= self.settings.ramp:
            return full
        return 1 + int((full - 1) * progress / self.settings.ramp)

    def _tally(self) -> Tally:
        return Tally(self.settings.steps_ahead, self.device)

    @torch.no_grad()
    def _evaluate(self, held_out: list[TokenBlock]) -> Report:
        tally, steps = self._tally(), self.settings.steps_ahead
        self.head.eval()
        for block in held_out[self.accelerator.process_index :: self.accelerator.num_processes]:
            batch = self.features.batch(block)
            if int(self.loss.valid(batch, steps).sum()):
                with self.accelerator.autocast():
                    tally.add(self.loss(batch, steps))
        self.head.train()
        report = self._report("held_out", tally, 0.0)
        score = sum(report.acceptance)
        if score > self.best:
            self.best = score
            if self.accelerator.is_main_process:
                save_head(self.head, self.folder / "head")
        if self.accelerator.is_main_process:
            write_curve(self.folder)
        return report

    def _report(self, kind: str, tally: Tally, speed: float) -> Report:
        tally.sums = self.accelerator.reduce(tally.sums, "sum")
        report = Report(
            kind=kind,
            step=self.step,
            token_passes=self.token_passes,
            seconds=round(self.seconds, 1),
            tokens_per_second=round(speed, 1),
            acceptance=tally.acceptance(),
            loss=tally.losses(),
        )
        if self.accelerator.is_main_process:
            append_report(self.folder, report)
        return report

    def save_state(self) -> None:
        """Writes everything a resumed run needs, whole or not at all."""
        if self.accelerator.is_main_process:
            state = {
                "head": self.head.state_dict(),
                "config": self.head.config.model_dump(),
                "settings": asdict(self.settings),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "position": self._position(),
                "random": torch.get_rng_state(),
                "cuda_random": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            }
            write_atomically(self.folder / "state.pt", lambda temporary: _save(state, temporary))
        self.accelerator.wait_for_everyone()

    def _position(self) -> dict[str, Any]:
        names = ("step", "token_passes", "pass_number", "block_number", "seconds", "best")
        return {name: getattr(self, name) for name in names}

    def _load_state(self) -> None:
        path = self.folder / "state.pt"
        if not path.is_file():
            raise UserError(f"nothing to resume: {path} does not exist; start without --resume")
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
            config, settings, position = state["config"], state.get("settings", {}), state["position"]
        except (RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
            raise UserError(f"{path} is damaged ({error}); start again in another --out folder") from error
        if config != self.head.config.model_dump():
            raise UserError(f"{path} belongs to a head of another shape; give the settings it was started with")
        wanted = asdict(self.settings)
        if changed := [name for name in FIXED_SETTINGS if settings.get(name, wanted[name]) != wanted[name]]:
            was = ", ".join(f"{name} {settings[name]}" for name in changed)
            raise UserError(f"{path} was trained with {was}; resume with the same, or start in another --out folder")
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for name, value in position.items():
            setattr(self, name, value)
        torch.set_rng_state(state["random"].cpu())
        if self.device.type == "cuda" and state.get("cuda_random"):
            torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda_random"]])
        if self.accelerator.is_main_process:
            forget_after(self.folder, self.step)


def _save(state: dict[str, Any], path: Path) -> None:
    # Through a file of Python's: torch's own writer hides that a disk is full.
    with path.open("wb") as file:
        torch.save(state, file)
