"""How much more data helps: one EAGLE-3 head and one EAGLE-2 head for each fraction of a corpus, measured alike.

Every head gets the same number of token-passes, so that a smaller fraction is repeated more often: what differs is how
much there is to learn from, not how long is learnt. Fractions are nested: a larger one holds all of a smaller one.
All heads draft trees of one shape for the same prompts, greedily, and their output is checked against plain decoding.

The folder holds `plan.json` (what may not change on resume) and a run folder for each head, with `result.json` once it
is measured.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import RunStatistics
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.models.checkpoint import load_draft_head
from eagle3_demo.models.session import FINAL_STATE
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import METHOD_NAMES, SPECULATIVE_METHODS, GenerationSettings, Method
from eagle3_demo.training.batches import TokenBlock
from eagle3_demo.training.feature_regression import FeatureRegression, initial_eagle2_head
from eagle3_demo.training.features import SomeTaps, TargetFeatures
from eagle3_demo.training.initial_head import HeadChoice, first_head
from eagle3_demo.training.metrics import Report, read_reports
from eagle3_demo.training.trainer import Trainer, TrainingSettings


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """What every head of a scaling run shares.

    Attributes:
        training: one head's budget and rates.
        draft_vocabulary: tokens that an EAGLE-3 head can propose.
        generation: tree and answer length of the measurement; greedy.
        prompts_sha256: of the prompt file.
    """

    training: TrainingSettings
    draft_vocabulary: int
    generation: GenerationSettings
    prompts_sha256: str

    def plan(self, blocks: Sequence[TokenBlock]) -> dict[str, Any]:
        """What may not change between the parts of a run, as JSON data."""
        return {
            "corpus_sha256": hashlib.sha256("".join(sorted(block.name for block in blocks)).encode()).hexdigest(),
            "training": asdict(self.training),
            "draft_vocabulary": self.draft_vocabulary,
            "generation": self.generation.model_dump(mode="json"),
            "prompts_sha256": self.prompts_sha256,
        }


@dataclass(frozen=True, slots=True)
class Doing:
    """How far a scaling run is: which head, and what the trainer reports; None while it is measured."""

    method: Method
    fraction: float
    report: Report | None


def claim_folder(folder: Path, plan: dict[str, Any], resume: bool) -> None:
    """Makes the folder this run's, or finds that it is.

    Raises:
        UserError: it holds something else, a run that was not to be resumed, or one with another plan.
    """
    path = folder / "plan.json"
    if not path.is_file():
        if resume:
            raise UserError(f"nothing to resume: {path} does not exist; start without --resume")
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} holds something else than a scaling run; give another --out")
        text = json.dumps(plan, indent=1)
        write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        return
    if not resume:
        raise UserError(f"{folder} holds a scaling run already; add --resume to go on with it, or give another --out")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        different = [name for name in plan if found[name] != plan[name]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); give another --out") from error
    if different:
        raise UserError(
            f"{folder} was started with another {', '.join(different)}; give the options it was started with, "
            "or another --out"
        )


def fraction_of(blocks: Sequence[TokenBlock], fraction: float, seed: int) -> list[TokenBlock]:
    """A random share of the blocks, by answer tokens, rounded up to whole blocks; larger shares hold smaller ones.

    Args:
        fraction: above 0, at most 1.
    """
    wanted = fraction * sum(block.answer_tokens for block in blocks)
    chosen: list[TokenBlock] = []
    held = 0
    for block in random.Random(seed).sample(list(blocks), len(blocks)):
        if held >= wanted:
            break
        chosen.append(block)
        held += block.answer_tokens
    return chosen


def answer_counts(blocks: Sequence[TokenBlock], vocabulary_size: int) -> Tensor:
    """How often each token occurs in the blocks' answers, int64 [vocabulary]."""
    counts = torch.zeros(vocabulary_size, dtype=torch.long)
    for block in blocks:
        counts += torch.bincount(block.tokens[block.answer], minlength=vocabulary_size)
    return counts


class AcceptanceMeter:
    """Measures heads on the same prompts with the same tree.

    Args:
        target: the target as the demo runs it.
        prompts: token ids of each prompt.
        settings: tree and answer length; greedy.
    """

    def __init__(self, target: TargetModel, prompts: Sequence[list[int]], settings: GenerationSettings) -> None:
        self.target, self.prompts, self.settings = target, prompts, settings

    @cached_property
    def plain(self) -> list[list[int]]:
        """Plain decoding's answers, token ids."""
        return [
            RunStatistics.of(decode_autoregressive(self.target, ids, self.settings)).token_ids for ids in self.prompts
        ]

    def measure(self, folder: Path) -> dict[str, Any]:
        """A trained head's acceptance length over all prompts, and how many answers are plain decoding's.

        Args:
            folder: the head's checkpoint.
        """
        head = load_draft_head(folder, self.target)
        runs = [RunStatistics.of(decode_speculatively(self.target, head, ids, self.settings)) for ids in self.prompts]
        forwards = sum(run.target_forwards for run in runs)
        return {
            "acceptance_length": round(sum(run.decode_tokens for run in runs) / max(1, forwards), 4),
            "identical": sum(run.token_ids == ids for run, ids in zip(runs, self.plain, strict=True)),
            "compared": len(runs),
        }


class ScalingRun:
    """Trains and measures the heads of a scaling run, one after the other.

    Args:
        model: the frozen target as transformers runs it, for training.
        features: of that target, with the taps of `shared_taps`.
        meter: measures the trained heads.
        settings: what all heads share.
        always: ids that every draft vocabulary holds, such as end tokens.
        folder: the claimed folder (`claim_folder`).
        mixed_precision: `no` or `bf16`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        features: TargetFeatures,
        meter: AcceptanceMeter,
        settings: ScalingSettings,
        always: Sequence[int],
        folder: Path,
        mixed_precision: str = "no",
    ) -> None:
        self.model, self.features, self.meter, self.settings = model, features, meter, settings
        self.always, self.folder, self.mixed_precision = always, folder, mixed_precision
        self.points: list[dict[str, Any]] = []

    def run(
        self,
        training: Sequence[TokenBlock],
        held_out: list[TokenBlock],
        fractions: Sequence[float],
        methods: Sequence[Method] = SPECULATIVE_METHODS,
    ) -> Iterator[Doing]:
        """Works through the fractions; `points` grows with every measured head, those of earlier parts included.

        Args:
            methods: the kinds of head to train on each fraction.

        Raises:
            UserError: a result on disk is damaged, or training diverged.
        """
        for fraction in fractions:
            blocks = fraction_of(training, fraction, self.settings.training.seed)
            for method in methods:
                folder = self.folder / f"{method}-{fraction:g}"
                path = folder / "result.json"
                if not path.is_file():
                    for report in self._train(method, blocks, held_out, folder):
                        yield Doing(method, fraction, report)
                    yield Doing(method, fraction, None)
                    self._measure(method, fraction, blocks, folder)
                self.points.append(_read_result(path))
                yield Doing(method, fraction, None)

    def _train(
        self, method: Method, blocks: list[TokenBlock], held_out: list[TokenBlock], folder: Path
    ) -> Iterator[Report]:
        torch.manual_seed(self.settings.training.seed)
        resume = (folder / "state.pt").is_file()
        options: dict[str, Any] = {"resume": resume, "mixed_precision": self.mixed_precision}
        if method == "eagle2":
            eagle2 = initial_eagle2_head(self.model)
            source = SomeTaps(self.features, 3, 4)
            loss = FeatureRegression(eagle2, self.model)
            trainer = Trainer(eagle2, source, self.settings.training, folder, loss=loss, **options)
        else:
            counts = answer_counts(blocks, self.model.config.get_text_config().vocab_size)
            head = first_head(self.model, HeadChoice(self.settings.draft_vocabulary), counts, self.always)
            trainer = Trainer(head, SomeTaps(self.features, 0, 3), self.settings.training, folder, **options)
        yield from trainer.run(blocks, held_out)

    def _measure(self, method: Method, fraction: float, blocks: list[TokenBlock], folder: Path) -> None:
        last = _held_out_reports(folder)[-1]
        result = {
            "method": method,
            "fraction": fraction,
            "answer_tokens": sum(block.answer_tokens for block in blocks),
            "sequences": sum(len(block.tokens) for block in blocks),
            "token_passes": last["token_passes"],
            "seconds_training": last["seconds"],
            "held_out_acceptance": last["acceptance"],
            **self.meter.measure(folder / "head"),
        }
        text = json.dumps(result, indent=1)
        write_atomically(folder / "result.json", lambda path: path.write_text(text, encoding="utf-8"))
        # The trained head stays; what only a resumed training needs is many times its size.
        (folder / "state.pt").unlink(missing_ok=True)


def shared_taps(layers: int) -> tuple[int, int, int, int]:
    """What both kinds of head read: EAGLE-3's default taps, then EAGLE-2's final state."""
    return 2, layers // 2, layers - 3, FINAL_STATE


def learning_curve(name: str, folder: Path) -> dict[str, Any]:
    """A training run's held-out acceptance by token-passes, as `curve.json` holds it.

    Args:
        name: how the curve is called.
        folder: the run folder.

    Raises:
        UserError: it holds no held-out reports, or damaged ones.
    """
    points = [
        {"token_passes": report["token_passes"], "acceptance": report["acceptance"]}
        for report in _held_out_reports(folder)
    ]
    return {"name": name, "points": points}


def curves(points: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The learning curves of all measured heads."""
    return [
        learning_curve(
            f"{METHOD_NAMES[point['method']]}, {point['answer_tokens']:,} answer tokens",
            folder / f"{point['method']}-{point['fraction']:g}",
        )
        for point in points
    ]


def _held_out_reports(folder: Path) -> list[dict[str, Any]]:
    try:
        reports = [report for report in read_reports(folder) if report["kind"] == "held_out"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"the metrics in {folder} are damaged ({error!r}); train again into another folder") from error
    if not reports:
        raise UserError(f"{folder} holds no held-out reports; give the folder of a `train` run that was evaluated")
    return reports


def _read_result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); delete its folder and run the command again") from error
    return result
