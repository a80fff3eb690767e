"""The frozen target's features of a block of tokens, computed once and kept on disk within a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.training.batches import TokenBlock
from eagle3_demo.training.training_time_test import TrainingBatch

ROWS_AT_ONCE = 1024


class FeatureSource(Protocol):
    """What training needs of the target: the model itself, and token blocks with its features."""

    model: PreTrainedModel

    def batch(self, block: TokenBlock) -> TrainingBatch:
        """The block with its features."""


class SomeTaps:
    """A source whose batches hold only some of another's taps, so that heads of two kinds share features on disk.

    Args:
        source: gives more taps.
        first, last: the taps to keep, `last` excluded.
    """

    def __init__(self, source: FeatureSource, first: int, last: int) -> None:
        self.model, self._source = source.model, source
        size = source.model.config.get_text_config().hidden_size
        self._columns = slice(first * size, last * size)

    def batch(self, block: TokenBlock) -> TrainingBatch:
        """The block with some of its features."""
        whole = self._source.batch(block)
        return replace(whole, taps=whole.taps[..., self._columns])


class TargetFeatures:
    """Turns token blocks into training batches with the target's hidden states.

    Args:
        model: the frozen target.
        taps: layers whose inputs are tapped; -1 is the last hidden state after the final norm.
        folder: where features are kept between passes; None computes them anew each time.
        budget_bytes: no more than this is written; blocks beyond it are computed each time.
    """

    def __init__(
        self, model: PreTrainedModel, taps: tuple[int, ...], folder: Path | None = None, budget_bytes: int = 0
    ) -> None:
        self.model, self.taps, self.folder, self.budget = model, taps, folder, budget_bytes
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            self.budget -= sum(file.stat().st_size for file in folder.glob("*.safetensors"))

    def batch(self, block: TokenBlock) -> TrainingBatch:
        """The block with its features; [batch, n, …] in the model's dtype."""
        path = self.folder / f"{block.name}.safetensors" if self.folder else None
        if path and path.exists():
            features = _load(path)
        else:
            features = self._compute(block)
            size = sum(tensor.nbytes for tensor in features.values())
            if path and size <= self.budget:
                self.budget -= size
                kept = {name: tensor.contiguous() for name, tensor in features.items()}
                write_atomically(path, lambda temporary: save_file(kept, temporary))
        device = self.model.device
        tokens, real, answer = (tensor.to(device) for tensor in (block.tokens, block.real, block.answer))
        columns = answer.shape[1] - features["final"].shape[1]
        final = torch.nn.functional.pad(features["final"].to(device), (0, 0, columns, 0))
        choice = torch.nn.functional.pad(features["choice"].to(device), (columns, 0))
        return TrainingBatch(tokens, real, answer, features["taps"].to(device), final, choice)

    @torch.no_grad()
    def _compute(self, block: TokenBlock) -> dict[str, Tensor]:
        """Taps everywhere; final states and choices only from one column before the first answer on."""
        device = self.model.device
        tokens, real = block.tokens.to(device), block.real.to(device)
        n = tokens.shape[1]
        visible = torch.ones(n, n, dtype=torch.bool, device=device).tril() & real[:, None, :]
        visible |= torch.eye(n, dtype=torch.bool, device=device)
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=device).masked_fill(~visible, float("-inf"))
        output = self.model.base_model(
            input_ids=tokens,
            attention_mask=mask[:, None],
            position_ids=(real.long().cumsum(-1) - 1).clamp_min(0),
            output_hidden_states=True,
            use_cache=False,
        )
        taps = torch.cat([output.hidden_states[layer] for layer in self.taps], dim=-1)
        first = max(0, int(block.answer.any(0).nonzero()[0]) - 1)
        final = output.last_hidden_state[:, first:]
        lm_head = self.model.get_output_embeddings()
        choice = [lm_head(rows).argmax(-1) for rows in final.flatten(0, 1).split(ROWS_AT_ONCE)]
        return {"taps": taps, "final": final, "choice": torch.cat(choice).view(final.shape[:2])}


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"kept features {path} are damaged ({error}); delete the file and resume") from error
