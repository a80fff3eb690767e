"""Grouped attention: several query heads share one key-value head, and keys and values are never repeated.

`grouped_attention` goes through PyTorch and takes any rows; `CachedAttention` is one call into kernels.c for the few
rows of a decoding step, and sums each row in the same order whatever tree it stands in.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from eagle3_demo.models.native import native_kernels
from eagle3_demo.models.packed_linear import LANES

GROUPED_ATTENTION = "eagle3_demo_grouped"
MOST_ROWS = 128
"""Beyond this many rows PyTorch's blocked kernels are faster than `CachedAttention`."""


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in which several query heads share one key-value head, without ever repeating keys or values.

    Args:
        module: the attention layer; unused, part of transformers' attention interface.
        query: [1, heads, n, d].
        key, value: [1, key-value heads, T, d].
        attention_mask: additive [1, 1, n, T]. None only where one row sees everything.
        scaling: factor on the scores.

    Returns:
        [1, n, heads, d], and no attention weights.

    Raises:
        ValueError: several rows and no mask.
    """
    if attention_mask is None and query.shape[2] > 1:
        raise ValueError(f"{query.shape[2]} rows need a mask")
    if attention_mask is not None and query.device.type == "cuda":
        return folded_attention(query, key, value, attention_mask, scaling).transpose(1, 2), None
    output = F.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2), None


def folded_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """The same with the heads of a group as rows: CUDA's fast kernels take a mask or grouped heads, not both.

    Returns:
        [1, heads, n, d].
    """
    batch, heads, rows, size = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(batch, key.shape[1], groups * rows, size)
    output = F.scaled_dot_product_attention(folded, key, value, mask.repeat(1, 1, groups, 1), scale=scaling)
    return output.view(batch, heads, rows, output.shape[-1])


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
AttentionMaskInterface.register(GROUPED_ATTENTION, eager_mask)


class CachedAttention:
    """Attention of a step's rows over a cache in place, by one call.

    Args:
        heads, shared: query heads and key-value heads.
        head_dim: size of one head.
        scaling: factor on the scores.
    """

    def __init__(self, heads: int, shared: int, head_dim: int, scaling: float) -> None:
        kernels, _ = native_kernels()
        self._kernel = None if kernels is None or head_dim % LANES else kernels.attention
        self._heads, self._shared, self._head_dim, self._scaling = heads, shared, head_dim, scaling

    def takes(self, rows: int) -> bool:
        """Whether it is there, and meant for so many rows."""
        return self._kernel is not None and rows <= MOST_ROWS

    def __call__(
        self,
        projected: Tensor,
        rotary: tuple[Tensor, Tensor],
        positions: Tensor,
        keys: int,
        values: int,
        visible: Tensor | None,
        length: int,
        pending: int,
        capacity: int,
    ) -> Tensor:
        """Writes the rows' keys and values to the cache and attends.

        Args:
            projected: float32 [n, (heads + 2 * shared) * head size], contiguous; changed in place.
            rotary: cosines and sines, float32 [places, head size] each, the sines negative in the first half.
            positions: int64 [n], the line of `rotary` for each row.
            keys, values: addresses of float32 [shared, capacity, head size].
            visible: bool [n, pending + n], contiguous: which rows of the tree each row sees. None for a single row.
            length, pending: cache rows that all see, and rows of earlier levels of the tree after them.

        Returns:
            float32 [n, heads * head size].

        Raises:
            MemoryError: no memory for the scores.
        """
        assert self._kernel is not None
        rows = len(positions)
        output = projected.new_empty(rows, self._heads * self._head_dim)
        cosines, sines = rotary
        seen = None if visible is None else visible.data_ptr()
        where = (projected.data_ptr(), cosines.data_ptr(), sines.data_ptr(), positions.data_ptr(), keys, values, seen)
        sizes = (rows, self._heads, self._shared, self._head_dim, length, pending, capacity)
        if self._kernel(*where, output.data_ptr(), *sizes, self._scaling, torch.get_num_threads()):
            raise MemoryError(f"no memory for attention over {length + pending + rows} rows")
        return output
