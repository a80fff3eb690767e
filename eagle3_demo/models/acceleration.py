"""The same maths, faster: grouped attention for every device, half-size packed weights on the CPU.

On the CPU a forward over few rows is bound by reading weights. FBGEMM's packed float16 weights halve the bytes, and
projections that share their input are packed as one. Activations, sums and the cache stay in float32. The packed
weights are rounded once, at load; the packed model is then *the* target, for plain decoding and speculation alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel
from transformers.masking_utils import eager_mask

GROUPED_ATTENTION = "eagle3_demo_grouped"
LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types with the layout `model.{embed_tokens, rotary_emb, layers, norm}` + `lm_head` and nothing in between."""

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
    """Attention in which the query heads of one key-value head become rows, so keys and values are never repeated.

    Args:
        module: the attention layer; unused, part of transformers' attention interface.
        query: [1, heads, n, d].
        key, value: [1, key-value heads, T, d].
        attention_mask: additive [1, 1, n, T], or already repeated for each group by `grouped_mask`. None only where
            one row sees everything.
        scaling: factor on the scores.

    Returns:
        [1, n, heads, d], and no attention weights.

    Raises:
        ValueError: several rows and no mask.
    """
    batch, heads, rows, size = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None:
        if rows > 1:
            raise ValueError(f"{rows} rows need a mask")
    elif attention_mask.shape[-2] == rows:
        attention_mask = grouped_mask(attention_mask, groups)
    folded = query.reshape(batch, key.shape[1], groups * rows, size)
    output = F.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return output.view(batch, heads, rows, output.shape[-1]).transpose(1, 2), None


def grouped_mask(mask: Tensor, groups: int) -> Tensor:
    """The mask [1, 1, n, T] repeated for each query head of a group: once a forward, not once a layer."""
    return mask.repeat(1, 1, groups, 1)


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
AttentionMaskInterface.register(GROUPED_ATTENTION, eager_mask)


class PackedLinear(nn.Module):
    """One or several linear layers over the same input, as one product with packed float16 weights.

    Args:
        linears: layers whose outputs are concatenated in this order.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        weight = torch.cat([linear.weight.detach().float() for linear in linears])
        bias = None
        if any(linear.bias is not None for linear in linears):
            bias = torch.cat([_bias(linear) for linear in linears])
        self.out_features, self.in_features = weight.shape
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self._packed)


class FusedAttention(nn.Module):
    """A Llama-like self-attention with one packed query-key-value projection.

    Args:
        attention: the transformers layer it replaces; query and key norms (Qwen3) are kept.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.layer_idx, self.head_dim, self.scaling = attention.layer_idx, attention.head_dim, attention.scaling
        self.heads = attention.q_proj.out_features // self.head_dim
        self.key_value_heads = attention.k_proj.out_features // self.head_dim
        self.qkv_proj = PackedLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o_proj = PackedLinear(attention.o_proj)
        self.q_norm, self.k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        batch, rows, _ = hidden_states.shape
        projected = self.qkv_proj(hidden_states).view(batch, rows, -1, self.head_dim)
        rotating = self.heads + self.key_value_heads
        value = projected[:, :, rotating:].transpose(1, 2)
        query, key = projected[:, :, : self.heads], projected[:, :, self.heads : rotating]
        if self.q_norm is not None and self.k_norm is not None:
            both = torch.cat((self.q_norm(query), self.k_norm(key)), 2)
        else:
            both = projected[:, :, :rotating]
        both = _rotate(both, *(table.unsqueeze(2) for table in position_embeddings)).transpose(1, 2)
        query, key = both[:, : self.heads], both[:, self.heads :]
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        output, _ = grouped_attention(self, query, key, value, attention_mask, self.scaling)
        return self.o_proj(output.reshape(batch, rows, -1)), None


class FusedNorm(nn.Module):
    """RMS normalisation in five operations where PyTorch's own takes ten on the CPU; for inference only.

    Args:
        norm: the transformers layer it replaces.
    """

    scale: Tensor
    floor: Tensor

    def __init__(self, norm: Any) -> None:
        super().__init__()
        size = norm.weight.shape[-1]
        self.register_buffer("scale", norm.weight.detach() * size**0.5)
        self.register_buffer("floor", torch.tensor(norm.variance_epsilon * size))

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * self.scale).mul_(torch.addcmul(self.floor, length, length).rsqrt_())


class SignedRotary(nn.Module):
    """Rotary tables whose sine carries the sign of each half, which saves two operations in every layer.

    Args:
        rotary: the transformers module it replaces; its tables are [1, n, d].
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary(x, position_ids)
        sin[..., : sin.shape[-1] // 2].neg_()
        return cos, sin


class FusedGatedUnit(nn.Module):
    """A Llama-like MLP with one packed gate-and-up projection.

    Args:
        unit: the transformers layer it replaces.
    """

    def __init__(self, unit: Any) -> None:
        super().__init__()
        self.gate_up_proj = PackedLinear(unit.gate_proj, unit.up_proj)
        self.down_proj = PackedLinear(unit.down_proj)
        self.act_fn = unit.act_fn

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(hidden_states).chunk(2, -1)
        return self.down_proj(self.act_fn(gate) * up)


def accelerate(model: PreTrainedModel, packed: bool) -> str:
    """Speeds a frozen model up in place.

    Args:
        model: a causal LM in evaluation mode.
        packed: whether to pack the linear weights as float16 (CPU, float32 only).

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
    if packed and (obstacle := _packing_obstacle(model)):
        parts.append(f"plain {model.dtype} weights because {obstacle}".replace("torch.", ""))
    elif packed:
        _pack(model, standard)
        fused = ", query-key-value and gate-up fused" if standard else ""
        parts.append(f"float16 packed weights with float32 maths{fused}")
    else:
        parts.append(f"plain {model.dtype} weights".replace("torch.", ""))
    return "; ".join(parts)


def _packing_obstacle(model: PreTrainedModel) -> str:
    """Why the weights of this model cannot be packed; empty when they can."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"packing needs float32 on the CPU, not {model.dtype} on {model.device}"
    if not {"fbgemm", "x86"} & set(torch.backends.quantized.supported_engines):
        return "this processor or PyTorch build has no FBGEMM"
    largest = max((float(linear.weight.abs().max()) for linear in _linears(model).values()), default=0.0)
    if not largest <= _FLOAT16_MAX:
        return f"a weight of {largest:g} does not fit float16"
    return ""


def _pack(model: PreTrainedModel, standard: bool) -> None:
    """Replaces modules one by one, so that each float32 weight is freed before the next is packed."""
    if standard:
        decoder = model.get_decoder()
        decoder.rotary_emb = SignedRotary(decoder.rotary_emb)
        for layer in decoder.layers:
            layer.self_attn = FusedAttention(layer.self_attn)
            layer.mlp = FusedGatedUnit(layer.mlp)
        for name, norm in _named(model, lambda module: type(module).__name__.endswith("RMSNorm")).items():
            model.set_submodule(name, FusedNorm(norm))
    pack_linears(model)
    # What is left still points into the mapped weights file, which keeps all of it in memory.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def pack_linears(module: nn.Module) -> None:
    """Replaces every plain linear layer inside a float32 CPU module by its packed float16 twin."""
    for name, linear in _linears(module).items():
        module.set_submodule(name, PackedLinear(linear))


def _linears(model: nn.Module) -> dict[str, nn.Linear]:
    return _named(model, lambda module: type(module) is nn.Linear)


def _named(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if chosen(module)}


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary position embedding of [1, n, heads, d] with the tables of `SignedRotary` as [1, n, 1, d]."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
