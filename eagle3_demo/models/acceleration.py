"""The same maths, faster: grouped attention for every device, packed weights and fused layers on the CPU.

On the CPU a forward over few rows is bound by reading weights, so linear layers are packed (`packed_linear`), and those
that share their input are packed as one. Activations, sums and the cache stay in float32. Where packing rounds, it
rounds once, at load; the packed model is then *the* target, for plain decoding and speculation alike.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from eagle3_demo.models.attention import GROUPED_ATTENTION
from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.fused_layers import FusedHeadLayer, FusedLayer, SignedRotary
from eagle3_demo.models.native import native_kernels
from eagle3_demo.models.packed_linear import LANES, Blocks, eight_bit_blocks, packed_linear

LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types with the layout `model.{embed_tokens, rotary_emb, layers, norm}` + `lm_head` and nothing in between."""

_FLOAT16_MAX = 65504.0


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
        layers = len(_linears(model))
        _pack(model, standard, blocks or {})
        fused = ", query-key-value and gate-up fused" if standard else ""
        form = _form(len(blocks or {}), layers)
        means = "compiled for this processor" if kernels is not None else f"FBGEMM kernels because {lacking}"
        parts.append(f"{form} with float32 maths, {means}{fused}")
    else:
        parts.append(f"plain {model.dtype} weights".replace("torch.", ""))
    return "; ".join(parts)


def _form(kept: int, layers: int) -> str:
    """What packed weights are, when `kept` of the linear layers keep their blocks."""
    if not kept:
        return "float16 packed weights"
    rest = "" if kept == layers else f" in {kept} of {layers} linear layers, float16 in the others,"
    return f"the GGUF file's own 4- and 8-bit blocks{rest}"


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


def pack_head(head: DraftHead) -> None:
    """Packs a float32 draft head on the CPU in place, its weights rounded to 8-bit blocks where kernels can read them.

    Rounding changes what is proposed, never what comes out: the target's own weights decide that.
    """
    config = head.config
    kernels, _ = native_kernels()
    blocks = eight_bit_blocks(*_linears(head).values()) if kernels else {}
    static = head.rotary.rope_type in ("default", "linear", "llama3", "yarn")
    if kernels is not None and static and config.hidden_act == "silu" and config.head_dim % LANES == 0:
        head.fused = FusedHeadLayer(head.midlayer, head.rotary, config.head_dim, blocks)
    pack_linears(head, blocks)


def pack_linears(module: nn.Module, blocks: Blocks | None = None) -> None:
    """Replaces every plain linear layer inside a float32 CPU module by its packed twin."""
    for name, linear in _linears(module).items():
        module.set_submodule(name, packed_linear(linear, blocks=blocks))


def _linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
