"""What each of two processes does in a test of `accelerate launch`: trains on its share and writes its weights down."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from eagle3_demo.models.head import Eagle3Head
from eagle3_demo.training.batches import Sequence, TokenBlock, make_blocks
from eagle3_demo.training.features import TargetFeatures
from eagle3_demo.training.initial_head import head_config, initial_head
from eagle3_demo.training.trainer import Trainer, TrainingSettings
from tests.tiny_target import tiny_model

SETTINGS = TrainingSettings(
    token_passes=300, steps_ahead=2, optimizer="adamw", rows_per_update=8, report_every=2, evaluate_every=4
)


def in_two_blocks() -> list[TokenBlock]:
    """Two blocks of unlike size: 2 rows and 1 row, so that a mean of means would be another gradient."""
    return [block for rows in (_sequences()[:2], _sequences()[2:]) for block in make_blocks([rows], 64)]


def in_one_block() -> list[TokenBlock]:
    """The same three sequences as one block."""
    return make_blocks([_sequences()], 64)


def head(model: PreTrainedModel) -> Eagle3Head:
    """The same first weights in every process."""
    torch.manual_seed(0)
    return initial_head(model, head_config(model, 200, None), torch.arange(200))


def _sequences() -> list[Sequence]:
    numbers = np.random.default_rng(7).integers(3, 200, (3, 16))
    return [Sequence(row, np.arange(16) >= start) for row, start in zip(numbers, (4, 6, 11), strict=True)]


def main(folder: Path) -> None:
    """Runs in each of the two processes."""
    model = tiny_model()
    trainer = Trainer(head(model), TargetFeatures(model, (2, 4, 5)), SETTINGS, folder / "both")
    assert trainer.accelerator.num_processes == 2
    list(trainer.run(in_two_blocks(), in_two_blocks()))
    torch.save(trainer.head.state_dict(), folder / f"rank-{trainer.accelerator.process_index}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
