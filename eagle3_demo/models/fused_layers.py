"""Decoder layers as flat functions over packed weights, for the few rows of a decoding step on the CPU.

With few rows a layer's time beyond its weights goes into calling things; so these call as little as they can.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache
from transformers.activations import SiLUActivation

from eagle3_demo.models.attention import MOST_ROWS, CachedAttention, grouped_attention
from eagle3_demo.models.cache import InPlaceCache
from eagle3_demo.models.packed_linear import Blocks, Norm, packed_linear

_ROW_NUMBERS = torch.arange(MOST_ROWS)


class LayerProducts:
    """The linear layers of a decoder layer, packed: those that share their input as one.

    Args:
        attention: with `q_proj`, `k_proj`, `v_proj` and `o_proj`.
        unit: the MLP, with `gate_proj`, `up_proj`, `down_proj` and `act_fn`.
        norm: the RMS norm before the MLP.
        blocks: see `packed_linear`.
    """

    def __init__(self, attention: Any, unit: Any, norm: Norm, blocks: Blocks) -> None:
        self.qkv = packed_linear(attention.q_proj, attention.k_proj, attention.v_proj, blocks=blocks).forward
        self._output = packed_linear(attention.o_proj, blocks=blocks).forward
        self._gate_up = packed_linear(unit.gate_proj, unit.up_proj, blocks=blocks).forward
        self._down = packed_linear(unit.down_proj, blocks=blocks).forward
        self._activation = None if isinstance(unit.act_fn, (nn.SiLU, SiLUActivation)) else unit.act_fn.forward
        self._norm = norm

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Output projection, MLP and both residuals.

        Args:
            residual: float32 [..., n, H]; stays as it is, since a layer's input may be tapped.
            attended: [..., n, heads * d].

        Returns:
            [..., n, H].
        """
        middle = self._output(attended, onto=residual.clone())
        gate_up = self._gate_up(middle, self._norm)
        if self._activation is None:
            return self._down(gate_up, "silu-gated", middle)
        gate, up = gate_up.chunk(2, -1)
        return self._down(self._activation(gate).mul_(up), onto=middle)


class FusedLayer(nn.Module):
    """A Llama-like decoder layer as one flat function: fused packed projections, few operations, for inference only.

    Everything is a plain attribute, which is found faster than a submodule.

    Args:
        layer: the transformers layer it replaces; query and key norms (Qwen3) and biases are kept.
    """

    def __init__(self, layer: Any, blocks: Blocks) -> None:
        super().__init__()
        attention, unit = layer.self_attn, layer.mlp
        self.layer_idx, self.head_dim, self.scaling = attention.layer_idx, attention.head_dim, attention.scaling
        heads, shared = (linear.out_features // self.head_dim for linear in (attention.q_proj, attention.k_proj))
        self.parts = (heads + shared, shared)
        self.rotated_parts = (heads, shared)
        self.products = LayerProducts(attention, unit, _norm(layer.post_attention_layernorm), blocks)
        self.input_norm = _norm(layer.input_layernorm)
        self.attention = CachedAttention(heads, shared, self.head_dim, self.scaling)
        self.head_norms: tuple[Tensor, float] | None = None
        if hasattr(attention, "q_norm"):
            query, key = _norm(attention.q_norm), _norm(attention.k_norm)
            self.head_norms = torch.stack([query.weight] * heads + [key.weight] * shared)[:, None], query.epsilon

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """[1, n, H] -> [1, n, H], with the tables of `SignedRotary` as position embeddings."""
        assert position_embeddings is not None
        projected = self.products.qkv(hidden_states, self.input_norm).unflatten(-1, (-1, self.head_dim))
        rows = projected.shape[1]
        if isinstance(cache, InPlaceCache) and self.attention.takes(rows):
            attended = self._attend_natively(projected, cache, position_embeddings)
        else:
            attended = self._attend(projected, attention_mask, cache, position_embeddings).flatten(-2)
        return self.products.finish(hidden_states, attended)

    def _attend(
        self, projected: Tensor, mask: Tensor | None, cache: Cache | None, rotary: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[1, n, heads + 2 * key-value heads, d] to [1, n, heads, d], in PyTorch's operations."""
        rotating, value = projected.transpose(1, 2).split(self.parts, 1)
        if self.head_norms is not None:
            rotating = self._normed_heads(rotating)
        cos, sin = rotary
        rotated = torch.addcmul(rotating * cos, rotating.roll(self.head_dim // 2, -1), sin)
        query, key = rotated.split(self.rotated_parts, 1)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        return grouped_attention(self, query, key, value, mask, self.scaling)[0]

    def _attend_natively(self, projected: Tensor, cache: InPlaceCache, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """The same by one call into kernels.c; [1, n, heads * d]."""
        heads, shared = self.rotated_parts
        if self.head_norms is not None:
            rotating = self._normed_heads(projected[:, :, : heads + shared].transpose(1, 2)).transpose(1, 2)
            projected = torch.cat([rotating, projected[:, :, heads + shared :]], 2)
        keys, values = cache.addresses(self.layer_idx, projected[:, :, :shared].transpose(1, 2))
        positions = _ROW_NUMBERS[: projected.shape[1]]
        sizes = (cache.length, 0, cache.rows)
        return self.attention(projected, rotary, positions, keys, values, cache.visible, *sizes)[None]

    def _normed_heads(self, rotating: Tensor) -> Tensor:
        """Qwen3's norms of queries and keys: [1, heads, n, d] to the same."""
        assert self.head_norms is not None
        weight, epsilon = self.head_norms
        return F.rms_norm(rotating, (self.head_dim,), None, epsilon) * weight


class SignedRotary(nn.Module):
    """Rotary tables for `FusedLayer`: [1, 1, n, d], the sine with the sign of each half.

    Args:
        rotary: the transformers module it replaces; its tables are [1, n, d].
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary(x, position_ids)
        sin[..., : sin.shape[-1] // 2].neg_()
        return cos[:, None], sin[:, None]


def _norm(norm: Any) -> Norm:
    """A transformers RMS norm as a packed product takes it."""
    return Norm(norm.weight.detach().clone(), float(norm.variance_epsilon))


class FusedHeadLayer:
    """The one decoder layer of a draft head over a cache.

    Args:
        layer: with `self_attn`, `post_attention_layernorm` and `mlp`.
        rotary: the head's rotary embedding, one that is the same for every length.
        head_dim: size of one attention head.
        blocks: see `packed_linear`.
    """

    def __init__(self, layer: Any, rotary: nn.Module, head_dim: int, blocks: Blocks) -> None:
        attention, norm = layer.self_attn, layer.post_attention_layernorm
        heads, shared = (linear.out_features // head_dim for linear in (attention.q_proj, attention.k_proj))
        self._products = LayerProducts(
            attention, layer.mlp, Norm(norm.weight.detach().clone(), float(norm.eps)), blocks
        )
        self._attention = CachedAttention(heads, shared, head_dim, head_dim**-0.5)
        self._rotary = SignedRotary(rotary)
        self._tables = norm.weight.new_empty(0, head_dim), norm.weight.new_empty(0, head_dim)

    def takes(self, rows: int) -> bool:
        """See `CachedAttention.takes`."""
        return self._attention.takes(rows)

    def __call__(
        self,
        layer_input: Tensor,
        residual: Tensor,
        positions: Tensor,
        cache: tuple[Tensor, Tensor],
        visible: Tensor | None,
        length: int,
        last_only: bool,
    ) -> Tensor:
        """Writes the rows' keys and values after the cache's first rows and runs the layer.

        Args:
            layer_input: [n, input size].
            residual: [n, hidden], what the output is added to.
            positions: int64 [n], below the cache's capacity.
            cache: keys and values, [1, key-value heads, capacity, head size] each.
            visible: bool [n, pending + n], see `CachedAttention`; None for a single row.
            length: cache rows that all see.
            last_only: whether only the last row's output is wanted.

        Returns:
            [n, hidden], or [1, hidden].
        """
        keys, values = cache
        capacity = keys.shape[2]
        pending = 0 if visible is None else visible.shape[1] - len(positions)
        where = (keys.data_ptr(), values.data_ptr(), visible, length, pending, capacity)
        attended = self._attention(self._products.qkv(layer_input), self._tables_for(capacity), positions, *where)
        if last_only:
            attended, residual = attended[-1:], residual[-1:]
        return self._products.finish(residual, attended)

    def _tables_for(self, places: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of at least so many positions; they grow with the longest request."""
        if len(self._tables[0]) < places:
            positions = torch.arange(1 << (places - 1).bit_length())[None]
            cosines, sines = self._rotary(self._tables[0], positions)
            self._tables = cosines[0, 0].contiguous(), sines[0, 0].contiguous()
        return self._tables
