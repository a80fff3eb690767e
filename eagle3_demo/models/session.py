"""One request's way through the target: prefill the prompt, then verify a tree and commit a path, again and again.

A tree's rows are written right after the committed ones; `commit` keeps a path of them and forgets the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3_demo.models.acceleration import LLAMA_LIKE
from eagle3_demo.models.cache import InPlaceCache
from eagle3_demo.progress import ReadingCallback

TREE_ROWS = 128
"""Rows a session keeps beyond its capacity for one uncommitted tree."""
PREFILL_SLICE = 512
FINAL_STATE = -1
"""As a tap: the last layer's output after the final norm, which is what the LM head reads."""


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What a forward gives.

    Attributes:
        logits: float32 [rows, V].
        taps: the residual stream that enters each tapped layer (or the final state), in the order of the session's
            taps, side by side: [n, taps * H] in the model's dtype. None when the session has no taps.
    """

    logits: Tensor
    taps: Tensor | None


class TargetSession:
    """One request: its cache and what is committed in it. For one thread at a time; made by `TargetModel.session`.

    Args:
        model: a frozen causal LM that went through `TargetModel.wrap`; nothing is ever stored on it.
        capacity: positions the request may commit; one tree fits on top.
        taps: layers whose inputs to return, or `FINAL_STATE`; None for none.
    """

    def __init__(self, model: Any, capacity: int, taps: tuple[int, ...] | None) -> None:
        config = model.config.get_text_config()
        self._model, self._taps = model, taps
        self._run = _run_layers if model.config.model_type in LLAMA_LIKE else _run_model
        self._cache = InPlaceCache(config.num_hidden_layers, capacity + TREE_ROWS)

    @property
    def length(self) -> int:
        """Committed positions."""
        return self._cache.length

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int], reading: ReadingCallback | None = None) -> TargetOutput:
        """Runs over tokens and commits them all, in slices so that memory stays bounded.

        Args:
            ids: at least one token, placed right after what is committed.
            reading: told before each slice, when there is more than one.

        Returns:
            Logits of the last token only, [1, V]; taps of all of them.
        """
        if not ids:
            raise ValueError("nothing to prefill")
        tokens = torch.tensor(ids, device=self._model.device)
        outputs: list[TargetOutput] = []
        for number, slice_ in enumerate(tokens.split(PREFILL_SLICE)):
            if reading and len(ids) > PREFILL_SLICE:
                reading(number * PREFILL_SLICE, len(ids))
            count = len(slice_)
            order = torch.arange(count, device=tokens.device)
            causal = order[:, None] >= order if count > 1 else None
            outputs.append(self._forward(slice_, order, causal, last_only=True))
            self._cache.commit(range(count))
        taps = [output.taps for output in outputs if output.taps is not None]
        return TargetOutput(outputs[-1].logits, torch.cat(taps) if taps else None)

    @torch.inference_mode()
    def verify(self, tokens: Tensor, depths: Tensor, mask: Tensor | None) -> TargetOutput:
        """Runs over the nodes of a tree, written right after what is committed; commits nothing.

        Args:
            tokens: int64 [n], the root first.
            depths: int64 [n]; node i stands at position `length + depths[i]`.
            mask: bool [n, n]; `mask[i, j]` says that node i sees node j. None for a single node.

        Returns:
            Logits and taps of all n nodes.
        """
        return self._forward(tokens, depths, mask, last_only=False)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        """Keeps nodes of the last verified tree.

        Args:
            path: node indices, root first; each is committed at the next position.

        Raises:
            IndexError: a node that was not verified.
        """
        self._cache.commit(path)

    def reset(self) -> None:
        """Forgets everything committed."""
        self._cache.reset()

    def close(self) -> None:
        """Frees the cache; the session is over."""
        self._cache.free()

    def _forward(self, tokens: Tensor, depths: Tensor, visible: Tensor | None, last_only: bool) -> TargetOutput:
        if visible is None and len(tokens) > 1:
            raise ValueError(f"{len(tokens)} nodes need a mask")
        self._cache.open(len(tokens), visible)
        mask = None if visible is None else self._additive_mask(visible)
        positions = depths[None] + self.length
        return self._run(self._model, tokens[None], positions, mask, self._cache, self._taps, last_only)

    def _additive_mask(self, visible: Tensor) -> Tensor:
        """[1, 1, n, length + n]: every row sees what is committed, and of the new rows those that `visible` says."""
        count = len(visible)
        mask = torch.zeros(1, 1, count, self.length + count, dtype=self._model.dtype, device=visible.device)
        mask[..., self.length :].masked_fill_(~visible, float("-inf"))
        return mask


def _run_layers(
    model: Any,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor | None,
    cache: InPlaceCache,
    taps: tuple[int, ...] | None,
    last_only: bool,
) -> TargetOutput:
    """Walks a Llama-like model layer by layer: transformers' own modules without its bookkeeping around them."""
    decoder = model.model
    hidden = decoder.embed_tokens(ids)
    rotary = decoder.rotary_emb(hidden, positions)
    states = []
    for layer in decoder.layers:
        states.append(hidden)
        hidden = layer(
            hidden, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, position_embeddings=rotary
        )
    states.append(decoder.norm(hidden))
    logits = model.lm_head(states[-1][:, -1:] if last_only else states[-1])
    return TargetOutput(logits[0].float(), _join(states, taps))


def _run_model(
    model: Any,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor | None,
    cache: InPlaceCache,
    taps: tuple[int, ...] | None,
    last_only: bool,
) -> TargetOutput:
    """Runs any causal LM through its own forward."""
    if mask is None:
        mask = torch.zeros(1, 1, 1, cache.length + 1, dtype=model.dtype, device=ids.device)
    output = model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        cache=cache,
        use_cache=True,
        output_hidden_states=taps is not None,
    )
    logits = output.logits[0, -1:] if last_only else output.logits[0]
    return TargetOutput(logits.float(), _join(output.hidden_states, taps))


def _join(hidden_states: Sequence[Tensor], taps: tuple[int, ...] | None) -> Tensor | None:
    """Tapped states side by side; the input of each layer, then the final state, as transformers counts them."""
    return None if taps is None else torch.cat([hidden_states[layer][0] for layer in taps], -1)
