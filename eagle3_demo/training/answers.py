"""Answers of a target to many prompts at once: a batch whose rows are refilled as answers end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eagle3_demo.training.slot_cache import SlotCache, attending_over_slots

PREFILL_ROWS = 16
FREE_ROWS = 8


@dataclass(slots=True)
class Answer:
    """One sequence in flight or ended.

    Attributes:
        prompt: token ids up to where the target writes; earlier turns included.
        answer: token ids of the target's latest answer.
        earlier: bool for each token of `prompt`, true where the target wrote it in an earlier turn.
        said: text of the target's answers in earlier turns.
        turn: number of the latest answer, from 0.
    """

    prompt_index: int
    temperature: float
    prompt: list[int]
    answer: list[int] = field(default_factory=list)
    earlier: list[bool] = field(default_factory=list)
    said: tuple[str, ...] = ()
    turn: int = 0

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer."""
        return self.prompt + self.answer

    @property
    def marks(self) -> list[bool]:
        """For each of `tokens`, whether the target wrote it."""
        return (self.earlier or [False] * len(self.prompt)) + [True] * len(self.answer)


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
        next_turn: given an ended answer, the same conversation's next turn to answer, or None where it ends.
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
        next_turn: Callable[[Answer], Answer | None] | None = None,
    ) -> None:
        self.model, self.end_tokens, self.max_new_tokens = model, end_tokens, max_new_tokens
        self.next_turn = next_turn or (lambda answer: None)
        self.turns: deque[Answer] = deque()
        self.cache = SlotCache(model, batch_size, max_prompt_tokens + max_new_tokens + 1)
        self.generator = torch.Generator(device=model.device).manual_seed(seed)
        self.rows: list[Answer | None] = [None] * batch_size
        self.last = torch.zeros(batch_size, dtype=torch.long, device=model.device)
        self.temperatures = torch.zeros(batch_size, device=model.device)

    @torch.inference_mode()
    def run(self, waiting: Iterator[Answer]) -> Iterator[Answer]:
        """Yields each conversation's last answer as it ends, in no fixed order."""
        with attending_over_slots(self.model):
            while True:
                batch = self._refill(waiting)
                if batch:
                    yield from self._prefill(batch)
                elif any(row is not None for row in self.rows):
                    yield from self._decode()
                else:
                    return

    def _refill(self, waiting: Iterator[Answer]) -> list[tuple[int, Answer]]:
        """Answers to begin now and their slots: none until some slots are free, so that a prefill has several rows."""
        free = [slot for slot, row in enumerate(self.rows) if row is None]
        batch: list[tuple[int, Answer]] = []
        if len(free) < min(FREE_ROWS, len(self.rows)):
            return batch
        for slot in free[:PREFILL_ROWS]:
            answer = self.turns.popleft() if self.turns else next(waiting, None)
            if answer is None:
                break
            batch.append((slot, answer))
        return batch

    def _prefill(self, batch: list[tuple[int, Answer]]) -> Iterator[Answer]:
        device = self.model.device
        width = max(len(answer.prompt) for _, answer in batch)
        padded = [[0] * (width - len(answer.prompt)) + answer.prompt for _, answer in batch]
        lengths = torch.tensor([len(answer.prompt) for _, answer in batch], device=device)
        columns = torch.arange(width, device=device)
        real = columns >= width - lengths[:, None]
        causal = columns <= columns[:, None]
        # A padding row must see something: softmax over nothing is NaN and would spread through the values.
        mask = (causal & real[:, None, :]) | (columns == columns[:, None])
        positions = (real.long().cumsum(-1) - 1).clamp_min(0)
        self.cache.fill([(slot, len(answer.prompt)) for slot, answer in batch])
        slots = torch.tensor([slot for slot, _ in batch], device=device)
        self.temperatures[slots] = torch.tensor([answer.temperature for _, answer in batch], device=device)
        logits = self._forward(torch.tensor(padded, device=device), mask[:, None], positions, None)
        for slot, answer in batch:
            self.rows[slot] = answer
        yield from self._take(slots, sample_rows(logits, self.temperatures[slots], self.generator))

    def _decode(self) -> Iterator[Answer]:
        spans = self.cache.decode()
        device = self.model.device
        mask = torch.arange(self.cache.span, device=device) <= self.cache.lengths[:, None]
        logits = self._forward(self.last[:, None], mask[:, None, None], self.cache.lengths[:, None], spans)
        self.cache.lengths += 1
        tokens = sample_rows(logits, self.temperatures, self.generator)
        live = torch.tensor([slot for slot, row in enumerate(self.rows) if row is not None], device=device)
        ended = list(self._take(live, tokens[live]))
        free = torch.tensor([row is None for row in self.rows], device=device)
        self.cache.lengths.masked_fill_(free, 0)
        yield from ended

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, spans: list[int] | None) -> Tensor:
        """Logits of the last column, [rows, vocabulary]."""
        additive = torch.zeros(mask.shape, dtype=self.model.dtype, device=mask.device)
        output = self.model(
            input_ids=ids,
            attention_mask=additive.masked_fill_(~mask, float("-inf")),
            position_ids=positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
            slot_spans=spans,
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
                following = self.next_turn(row)
                if following is None:
                    yield row
                else:
                    self.turns.append(following)
