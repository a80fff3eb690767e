"""The same maths, faster: grouped attention for every device, packed weights and flat layers on the CPU.

On the CPU a forward over few rows is bound by reading weights, so linear layers are packed (`packed_linear`), and those
that share their input are packed as one. Activations, sums and the cache stay in float32. Where packing rounds, it
rounds once, at load; the packed model is then *the* target, for plain decoding and speculation alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.activations import SiLUActivation
from transformers.masking_utils import eager_mask

from eagle3_demo.models.cache import InPlaceCache
from eagle3_demo.models.native import native_kernels
from eagle3_demo.models.packed_linear import LANES, Norm, packed_linear

Blocks = Mapping[nn.Linear, np.ndarray]

GROUPED_ATTENTION = "eagle3_demo_grouped"
LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types with the layout `model.{embed_tokens, rotary_emb, layers, norm}` + `lm_head` and nothing in between."""

NATIVE_ROWS = 128
"""Up to this many rows attention is one call into kernels.c; beyond, PyTorch's blocked kernels are faster."""

_FLOAT16_MAX = 65504.0


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


class FusedLayer(nn.Module):
    """A Llama-like decoder layer as one flat function: fused packed projections, few operations, for inference only.

    With few rows a layer's time beyond its weights goes into calling things; so this calls as little as it can.
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
        self.qkv = packed_linear(attention.q_proj, attention.k_proj, attention.v_proj, blocks=blocks).forward
        self.output = packed_linear(attention.o_proj, blocks=blocks).forward
        self.gate_up = packed_linear(unit.gate_proj, unit.up_proj, blocks=blocks).forward
        self.down = packed_linear(unit.down_proj, blocks=blocks).forward
        self.activation = None if isinstance(unit.act_fn, (nn.SiLU, SiLUActivation)) else unit.act_fn.forward
        self.input_norm = _norm(layer.input_layernorm)
        self.middle_norm = _norm(layer.post_attention_layernorm)
        kernels, _ = native_kernels()
        self.attention = None if kernels is None or self.head_dim % LANES else kernels.attention
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
        projected = self.qkv(hidden_states, self.input_norm).unflatten(-1, (-1, self.head_dim))
        rows = projected.shape[1]
        if self.attention is not None and isinstance(cache, InPlaceCache) and rows <= NATIVE_ROWS:
            attended = self._attend_natively(projected, cache, position_embeddings)
        else:
            attended = self._attend(projected, attention_mask, cache, position_embeddings)
        # Onto a copy: the layer's input may be tapped, and stays as it is.
        hidden_states = self.output(attended.flatten(-2), onto=hidden_states.clone())
        gate_up = self.gate_up(hidden_states, self.middle_norm)
        if self.activation is None:
            return self.down(gate_up, "silu-gated", hidden_states)
        gate, up = gate_up.chunk(2, -1)
        return self.down(self.activation(gate).mul_(up), onto=hidden_states)

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
        """The same by one call into kernels.c."""
        assert self.attention is not None
        heads, shared = self.rotated_parts
        if self.head_norms is not None:
            rotating = self._normed_heads(projected[:, :, : heads + shared].transpose(1, 2)).transpose(1, 2)
            projected = torch.cat([rotating, projected[:, :, heads + shared :]], 2)
        rows = projected.shape[1]
        attended = projected.new_empty(1, rows, heads, self.head_dim)
        keys, values = cache.addresses(self.layer_idx, projected[:, :, :shared].transpose(1, 2))
        visible = None if cache.visible is None else cache.visible.data_ptr()
        where = (projected.data_ptr(), rotary[0].data_ptr(), rotary[1].data_ptr(), keys, values, visible)
        sizes = (rows, heads, shared, self.head_dim, cache.length, cache.rows)
        if self.attention(*where, attended.data_ptr(), *sizes, self.scaling, torch.get_num_threads()):
            raise MemoryError(f"no memory for attention over {cache.length + rows} rows")
        return attended

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


def accelerate(model: PreTrainedModel, packed: bool, blocks: Blocks | None = None) -> str:
    """Speeds a frozen model up in place.

    Args:
        model: a causal LM in evaluation mode.
        packed: whether to pack the linear weights (CPU, float32 only).
        blocks: the quantised blocks of its linear layers; without them weights are packed as float16.

    Returns:
        In words, what was done or why not.
    """
    standard = model.config.model_type in LLAMA_LIKE
    parts = []
    if standard:
        model.set_attn_implementation(GROUPED_ATTENTION)
        parts.append("grouped attention over an in-place cache")
    else:
        parts.append(f"in-place cache; attention as transformers computes it for {model.config.model_type}")
    kernels, lacking = native_kernels()
    if packed and (obstacle := _packing_obstacle(model, kernels is None)):
        parts.append(f"plain {model.dtype} weights because {obstacle}".replace("torch.", ""))
    elif packed:
        _pack(model, standard, blocks or {})
        fused = ", query-key-value and gate-up fused" if standard else ""
        form = "the GGUF file's own 4- and 8-bit blocks" if blocks else "float16 packed weights"
        means = "compiled for this processor" if kernels is not None else f"FBGEMM kernels because {lacking}"
        parts.append(f"{form} with float32 maths, {means}{fused}")
    else:
        parts.append(f"plain {model.dtype} weights".replace("torch.", ""))
    return "; ".join(parts)


def _packing_obstacle(model: PreTrainedModel, fbgemm: bool) -> str:
    """Why the weights of this model cannot be packed; empty when they can."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"packing needs float32 on the CPU, not {model.dtype} on {model.device}"
    if fbgemm and not {"fbgemm", "x86"} & set(torch.backends.quantized.supported_engines):
        return "this processor or PyTorch build has no FBGEMM"
    largest = max((float(linear.weight.abs().max()) for linear in _linears(model).values()), default=0.0)
    if not largest <= _FLOAT16_MAX:
        return f"a weight of {largest:g} does not fit float16"
    return ""


def _pack(model: PreTrainedModel, standard: bool, blocks: Blocks) -> None:
    """Replaces modules one by one, so that each float32 weight is freed before the next is packed."""
    if standard:
        decoder = model.get_decoder()
        decoder.rotary_emb = SignedRotary(decoder.rotary_emb)
        for index, layer in enumerate(decoder.layers):
            decoder.layers[index] = FusedLayer(layer, blocks)
    pack_linears(model, blocks)
    # What is left still points into the mapped weights file, which keeps all of it in memory.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def pack_linears(module: nn.Module, blocks: Blocks | None = None) -> None:
    """Replaces every plain linear layer inside a float32 CPU module by its packed twin."""
    for name, linear in _linears(module).items():
        module.set_submodule(name, packed_linear(linear, blocks=blocks))


def _linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if type(module) is nn.Linear}


def _norm(norm: Any) -> Norm:
    """A transformers RMS norm as a packed product takes it."""
    return Norm(norm.weight.detach().clone(), float(norm.variance_epsilon))
