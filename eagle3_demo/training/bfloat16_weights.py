"""Bfloat16 weights laid out beforehand as the processor's matrix products read them.

Without this a linear layer rearranges its weights in every call. It pays only on processors that multiply bfloat16
themselves (AMX, AVX512-BF16); the products are those of the plain layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


class ReorderedLinear(nn.Module):
    """A linear layer with reordered bfloat16 weights, for inference.

    Args:
        linear: the layer it replaces.
        rows: inputs that the layout is made for; others are right as well.
    """

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), rows)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


def processor_multiplies_bfloat16() -> bool:
    """Whether this processor has bfloat16 products and this torch the operations that use them."""
    operations = ("_reorder_linear_weight", "_linear_pointwise")
    if not all(hasattr(torch.ops.mkldnn, name) for name in operations):
        return False
    # Older versions of torch cannot tell; there the plain layers stay.
    checks = [getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")]
    return any(check() for check in checks if check is not None)


def how_it_multiplies(device: str, bfloat16: bool) -> str:
    """In words, how linear layers will run: for the person who waits for them."""
    if device != "cpu":
        return f"{'bfloat16' if bfloat16 else 'float32'} on {device}"
    if not bfloat16:
        return "float32"
    if processor_multiplies_bfloat16():
        return "bfloat16, weights laid out beforehand"
    return "bfloat16 without products of this processor's own; --precision no may be faster"


def reorder_weights(model: PreTrainedModel, rows: int) -> bool:
    """Replaces the linear layers of a bfloat16 model on the CPU, where that pays.

    Args:
        model: for inference only from then on.
        rows: inputs of the usual call, such as the answers in flight.

    Returns:
        whether it was done.
    """
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not processor_multiplies_bfloat16():
        return False
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            model.set_submodule(name, ReorderedLinear(module, rows))
    return True
