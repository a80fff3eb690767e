"""Answers of a target to many prompts at once: a batch whose rows are refilled as answers end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel


@dataclass(slots=True)
class Answer:
    """One sequence in flight or ended."""

    prompt_index: int
    temperature: float
    prompt: list[int]
    answer: list[int]


class SlotCache(Cache):
    """Keys and values of many sequences, each row at its own length, written in place.

    Buffers are [slots, key-value heads, capacity, head dim] per layer. A forward over new prompts (`fill`) attends only
    within itself and scatters its rows; a decode forward writes one position per row and attends over all rows.
    """

    def __init__(self, model: PreTrainedModel, slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, heads, capacity, head_dim)
        kind = {"dtype": model.dtype, "device": model.device}
        self.keys = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]
        self.lengths = torch.zeros(slots, dtype=torch.long, device=model.device)
        self.filling: list[tuple[int, int]] | None = None
        self.span = 0

    def fill(self, rows: list[tuple[int, int]]) -> None:
        """The next forward is a left-padded prefill; rows are (slot, real length)."""
        self.filling = rows
        for slot, length in rows:
            self.lengths[slot] = length

    def decode(self, span: int) -> None:
        """The next forward decodes one token in every slot, attending over the first `span` positions."""
        self.filling, self.span = None, span

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes one layer's new rows; returns what the forward attends to."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if self.filling is not None:
            for row, (slot, length) in enumerate(self.filling):
                keys[slot, :, :length] = key_states[row, :, -length:]
                values[slot, :, :length] = value_states[row, :, -length:]
            return key_states, value_states
        rows = torch.arange(len(self.lengths), device=keys.device)
        keys[rows, :, self.lengths] = key_states[:, :, 0]
        values[rows, :, self.lengths] = value_states[:, :, 0]
        return keys[:, :, : self.span], values[:, :, : self.span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.filling is not None else self.span - 1


def sample_rows(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row: argmax where the temperature is 0, else a draw by inverse cumulative distribution.

    Args:
        logits: float [rows, vocabulary].
        temperatures: float [rows].

    Returns:
        int64 [rows].
    """
    tokens = logits.argmax(-1)
    warm = (temperatures > 0).nonzero().squeeze(1)
    if len(warm):
        cumulative = torch.softmax(logits[warm].float() / temperatures[warm, None], -1).cumsum(-1)
        draw = torch.rand(len(warm), 1, generator=generator, device=logits.device) * cumulative[:, -1:]
        tokens[warm] = torch.searchsorted(cumulative, draw).squeeze(1).clamp_max(logits.shape[-1] - 1)
    return tokens


class AnswerGenerator:
    """Generates answers in a batch whose rows are refilled as answers end.

    Args:
        model: a frozen causal LM.
        end_tokens: ids that end an answer.
        batch_size: answers in flight at once.
        max_prompt_tokens, max_new_tokens: the longest of each.
        seed: for sampling.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        end_tokens: frozenset[int],
        *,
        batch_size: int,
        max_prompt_tokens: int,
        max_new_tokens: int,
        seed: int,
    ) -> None:
        self.model, self.end_tokens, self.max_new_tokens = model, end_tokens, max_new_tokens
        self.cache = SlotCache(model, batch_size, max_prompt_tokens + max_new_tokens + 1)
        self.generator = torch.Generator(device=model.device).manual_seed(seed)
        self.rows: list[Answer | None] = [None] * batch_size
        self.last = torch.zeros(batch_size, dtype=torch.long, device=model.device)
        self.temperatures = torch.zeros(batch_size, device=model.device)

    @torch.inference_mode()
    def run(self, waiting: Iterator[Answer]) -> Iterator[Answer]:
        """Yields each answer as it ends, in no fixed order."""
        exhausted = False
        while True:
            free = [slot for slot, row in enumerate(self.rows) if row is None]
            if not exhausted and len(free) >= min(8, len(self.rows)):
                batch = []
                for slot in free[:16]:
                    answer = next(waiting, None)
                    if answer is None:
                        exhausted = True
                        break
                    batch.append((slot, answer))
                if batch:
                    yield from self._prefill(batch)
                    continue
            if all(row is None for row in self.rows):
                return
            yield from self._decode()

    def _prefill(self, batch: list[tuple[int, Answer]]) -> Iterator[Answer]:
        width = max(len(answer.prompt) for _, answer in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        real = torch.zeros(len(batch), width, dtype=torch.bool)
        for row, (_, answer) in enumerate(batch):
            ids[row, width - len(answer.prompt) :] = torch.tensor(answer.prompt)
            real[row, width - len(answer.prompt) :] = True
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        # A padding row must see something: softmax over nothing is NaN and would spread through the values.
        mask = (causal & real[:, None, :]) | torch.eye(width, dtype=torch.bool)
        positions = (real.long().cumsum(-1) - 1).clamp_min(0)
        self.cache.fill([(slot, len(answer.prompt)) for slot, answer in batch])
        slots = torch.tensor([slot for slot, _ in batch])
        self.temperatures[slots] = torch.tensor([answer.temperature for _, answer in batch])
        logits = self._forward(ids, mask[:, None], positions)
        for slot, answer in batch:
            self.rows[slot] = answer
        yield from self._take(slots, sample_rows(logits, self.temperatures[slots], self.generator))

    def _decode(self) -> Iterator[Answer]:
        span = int(self.cache.lengths.max()) + 1
        self.cache.decode(span)
        mask = torch.arange(span, device=self.last.device) <= self.cache.lengths[:, None]
        logits = self._forward(self.last[:, None], mask[:, None, None], self.cache.lengths[:, None])
        self.cache.lengths += 1
        tokens = sample_rows(logits, self.temperatures, self.generator)
        live = torch.tensor([slot for slot, row in enumerate(self.rows) if row is not None])
        yield from self._take(live, tokens[live])
        empty = [slot for slot, row in enumerate(self.rows) if row is None]
        self.cache.lengths[empty] = 0

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self.model(
            input_ids=ids.to(self.model.device),
            attention_mask=torch.zeros(mask.shape, dtype=self.model.dtype).masked_fill(~mask, float("-inf")),
            position_ids=positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _take(self, slots: Tensor, tokens: Tensor) -> Iterator[Answer]:
        self.last[slots] = tokens
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            row = self.rows[slot]
            assert row is not None
            row.answer.append(token)
            if token in self.end_tokens or len(row.answer) >= self.max_new_tokens:
                self.rows[slot] = None
                yield row
