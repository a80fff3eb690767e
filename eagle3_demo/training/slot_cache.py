"""Keys and values of many answers in flight, and attention over them: every slot at its own length.

On a CPU attention over the cache costs what is read of it, so slots are worked through in small groups, each as far as
its longest member; on a GPU one call over all slots is faster than many small ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.masking_utils import eager_mask

from eagle3_demo.models.attention import folded_attention

SLOT_ATTENTION = "eagle3_demo_slots"
SLOTS_IN_GROUP = 4


class SlotCache(Cache):
    """Keys and values of many sequences, each row at its own length, written in place.

    Buffers are [slots, key-value heads, capacity, head dim] per layer. A forward over new prompts (`fill`) attends only
    within itself and scatters its rows; a decode forward writes one position per row and attends over all rows.

    Attributes:
        lengths: int64 [slots], positions written of each; 0 for a free slot.
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
        self.rows = torch.arange(slots, device=model.device)
        self.filling: list[tuple[int, int]] | None = None
        self.span = 0

    def fill(self, rows: list[tuple[int, int]]) -> None:
        """The next forward is a left-padded prefill; rows are (slot, real length)."""
        self.filling = rows
        for slot, length in rows:
            self.lengths[slot] = length

    def decode(self) -> list[int]:
        """The next forward decodes one token in every slot.

        Returns:
            how far each group of slots attends, for `slot_attention`; one group holds all slots on a GPU.
        """
        group = SLOTS_IN_GROUP if self.lengths.device.type == "cpu" else len(self.lengths)
        spans = [int(part.max()) + 1 for part in self.lengths.split(group)]
        self.filling, self.span = None, max(spans)
        return spans

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
        keys[self.rows, :, self.lengths] = key_states[:, :, 0]
        values[self.rows, :, self.lengths] = value_states[:, :, 0]
        return keys[:, :, : self.span], values[:, :, : self.span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.filling is not None else self.span - 1


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    slot_spans: list[int] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a prefill (no `slot_spans`) or of one new token in every slot.

    Args:
        module: the attention layer; unused, part of transformers' attention interface.
        query: [slots, heads, n, d].
        key, value: [slots, key-value heads, T, d].
        attention_mask: additive [slots, 1, n, T].
        scaling: factor on the scores.
        slot_spans: positions that each group of slots attends to; groups are equally large, the last may be smaller.

    Returns:
        [slots, n, heads, d], and no attention weights.
    """
    slots, heads, n, head_dim = query.shape
    if slot_spans is None:
        if query.device.type == "cuda":
            return folded_attention(query, key, value, attention_mask, scaling).transpose(1, 2), None
        output = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2), None
    # The query heads that share a key-value head become rows over it, so that no key is repeated.
    rows = query.view(slots, key.shape[1], heads // key.shape[1], head_dim)
    size = -(-slots // len(slot_spans))
    attended = []
    for number, span in enumerate(slot_spans):
        group = slice(number * size, (number + 1) * size)
        mask = attention_mask[group, :, :, :span]
        attended.append(
            F.scaled_dot_product_attention(
                rows[group], key[group, :, :span], value[group, :, :span], mask, scale=scaling
            )
        )
    return torch.cat(attended).reshape(slots, n, heads, head_dim), None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
AttentionMaskInterface.register(SLOT_ATTENTION, eager_mask)


@contextmanager
def attending_over_slots(model: PreTrainedModel) -> Iterator[None]:
    """Lets a model attend through `slot_attention`, and as before afterwards."""
    before = model.config._attn_implementation
    model.set_attn_implementation(SLOT_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
