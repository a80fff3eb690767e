"""Keys and values of one request in preallocated buffers: a forward writes in place, a commit moves rows down.

A transformers `Cache`, so every causal LM of transformers can be run on it. It holds `length` committed rows and,
while a forward runs, the rows of that forward right after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer


class InPlaceCache(Cache):
    """Key and value buffers [layers, 1, key-value heads, rows, head size], allocated by the first forward.

    Args:
        layers: decoder layers of the model.
        rows: positions the buffers can hold, the uncommitted ones included.
    """

    def __init__(self, layers: int, rows: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])
        self.rows = rows
        self.length = 0
        self.visible: Tensor | None = None
        self._width = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._views: list[tuple[Tensor, ...]] = []

    def open(self, width: int, visible: Tensor | None) -> None:
        """Makes room for the `width` rows of the next forward, right after the committed ones.

        Args:
            visible: bool [width, width], which of the new rows each sees; None for a single row.

        Raises:
            ValueError: the buffers are too small.
        """
        if self.length + width > self.rows:
            raise ValueError(f"{self.length} committed + {width} new rows do not fit a cache of {self.rows} rows")
        self._width = width
        self.visible = None if visible is None else visible.contiguous()
        self._views = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes one layer's new rows and returns views of all its rows so far.

        Args:
            key_states, value_states: [1, key-value heads, width, head size].
        """
        if self._keys is None or self._values is None:
            self._keys, self._values = self._allocated(key_states), self._allocated(value_states)
        if not self._views:
            self._slice(self._keys, self._values)
        new_keys, new_values, keys, values = self._views
        new_keys[layer_idx].copy_(key_states)
        new_values[layer_idx].copy_(value_states)
        return keys[layer_idx], values[layer_idx]

    def addresses(self, layer_idx: int, states: Tensor) -> tuple[int, int]:
        """Where one layer's keys and values lie in memory, [key-value heads, rows, head size] each.

        Args:
            states: [1, key-value heads, any, head size], what the buffers are to be made for.
        """
        if self._keys is None or self._values is None:
            self._keys, self._values = self._allocated(states), self._allocated(states)
        offset = layer_idx * self._keys.stride(0) * self._keys.element_size()
        return self._keys.data_ptr() + offset, self._values.data_ptr() + offset

    def _allocated(self, states: Tensor) -> Tensor:
        return states.new_empty(len(self.layers), *states.shape[:2], self.rows, states.shape[3])

    def _slice(self, keys: Tensor, values: Tensor) -> None:
        """Cuts the views of every layer at once: one call each for thirty layers, instead of four a layer."""
        end = self.length + self._width
        self._views = [
            keys[..., self.length : end, :].unbind(0),
            values[..., self.length : end, :].unbind(0),
            keys[..., :end, :].unbind(0),
            values[..., :end, :].unbind(0),
        ]

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the rows `path` of the last forward, in that order, and forgets the others.

        Raises:
            IndexError: a row that the last forward did not write.
        """
        if path and not 0 <= min(path) <= max(path) < self._width:
            raise IndexError(f"rows {list(path)} are not all among the {self._width} rows of the last forward")
        if list(path) != list(range(len(path))):
            for buffer in (self._keys, self._values):
                assert buffer is not None
                source = torch.tensor(path, device=buffer.device) + self.length
                buffer[..., self.length : self.length + len(path), :] = buffer.index_select(3, source)
        self.length += len(path)
        self._width = 0

    def reset(self) -> None:
        """Forgets every row; the buffers stay."""
        self.length = self._width = 0

    def free(self) -> None:
        """Forgets every row and gives the buffers back."""
        self.reset()
        self._keys = self._values = None
        self._views = []

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed rows."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Rows that a forward of `query_length` rows attends to, and their offset."""
        return self.length + query_length, 0
