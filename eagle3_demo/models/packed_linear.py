"""Linear layers over weights in a small format, for float32 rows on the CPU; one or several layers as one product.

A forward over few rows is bound by reading weights. The formats, from the best down:

- the blocks of a quantised GGUF file as they are (`gguf_blocks`), when the model came with them: nothing is rounded;
- float16, rounded once at load.

`kernels.c` multiplies both; without a C compiler FBGEMM, which PyTorch brings along, multiplies float16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from eagle3_demo.models.gguf_blocks import BLOCK, Q4_1, split_blocks
from eagle3_demo.models.native import Kernels, native_kernels

Blocks = Mapping[nn.Linear, np.ndarray]
"""Rows of GGUF blocks by layer."""

LANES = 16
FLOAT16 = 2
"""Format number of kernels.c, next to Q4_1 and Q8_0."""


class Norm(NamedTuple):
    """An RMS norm that the product applies to its input: weight float32 [inputs] and epsilon."""

    weight: Tensor
    epsilon: float


Gated = Literal["silu-gated"]
"""The input is [..., 2 * inputs], gates and values, and the product is over silu(gate) * value."""


class PackedLinear(nn.Module):
    """y = x @ W.T + bias, over float32 rows, for inference only.

    Attributes:
        in_features, out_features: as of `nn.Linear`.
    """

    in_features: int
    out_features: int

    def forward(self, x: Tensor, first: Norm | Gated | None = None, onto: Tensor | None = None) -> Tensor:
        """float32 [..., inputs] to [..., outputs].

        Args:
            first: what becomes of x before.
            onto: [..., outputs]; the products are added to it in place, and it is returned.
        """
        raise NotImplementedError


class NativeLinear(PackedLinear):
    """Through kernels.c. Rows do not depend on how many come along.

    Args:
        format: Q4_1, Q8_0 or FLOAT16.
        tiles: uint8, as `tiled_blocks` or `tiled_halves` give them.
        shape: outputs and inputs.
    """

    def __init__(self, kernels: Kernels, format: int, tiles: Tensor, shape: tuple[int, int], bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = shape
        self._product, self._format, self._tiles, self._bias = kernels.product, format, tiles, bias
        self._address = tiles.data_ptr()

    def forward(self, x: Tensor, first: Norm | Gated | None = None, onto: Tensor | None = None) -> Tensor:
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.out_features) if onto is None else onto
        preparation, weight, epsilon = 0, None, 0.0
        if isinstance(first, Norm):
            preparation, weight, epsilon = 1, first.weight.data_ptr(), first.epsilon
        elif first is not None:
            preparation = 2
        rows = y.numel() // self.out_features
        sizes = (rows, self.in_features, self.out_features, torch.get_num_threads())
        where = (x.data_ptr(), weight, epsilon, y.data_ptr(), onto is not None)
        if self._product(self._format, self._address, preparation, *where, *sizes):
            raise MemoryError(f"no memory for a product over {rows} rows")
        return y if self._bias is None else y.add_(self._bias)


class FbgemmLinear(PackedLinear):
    """Through FBGEMM's packed float16 weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, x: Tensor, first: Norm | Gated | None = None, onto: Tensor | None = None) -> Tensor:
        if isinstance(first, Norm):
            x = nn.functional.rms_norm(x, (self.in_features,), first.weight, first.epsilon)
        elif first is not None:
            gate, value = x.chunk(2, -1)
            x = nn.functional.silu(gate).mul_(value)
        y = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y if onto is None else onto.add_(y)


def packed_linear(*linears: nn.Linear, blocks: Blocks | None = None) -> PackedLinear:
    """Packs layers over the same input as one product whose outputs stand in this order.

    Args:
        linears: float32 layers on the CPU.
        blocks: the quantised blocks of layers that have them; used where all of `linears` do, in one format.
    """
    bias = None
    if any(linear.bias is not None for linear in linears):
        bias = torch.cat([_bias(linear) for linear in linears])
    kernels, _ = native_kernels()
    shape = (sum(linear.out_features for linear in linears), linears[0].in_features)
    if kernels is not None and blocks is not None and all(linear in blocks for linear in linears):
        found = [blocks[linear] for linear in linears]
        if len({part.shape[1] for part in found}) == 1:
            format, tiles = tiled_blocks(np.concatenate(found), shape[1])
            return NativeLinear(kernels, format, tiles, shape, bias)
    weight = torch.cat([linear.weight.detach().float() for linear in linears])
    if kernels is not None:
        return NativeLinear(kernels, FLOAT16, tiled_halves(weight), shape, bias)
    return FbgemmLinear(weight, bias)


def eight_bit_blocks(*linears: nn.Linear) -> Blocks:
    """Weights rounded to Q8_0 blocks; layers whose inputs are no whole number of blocks are left out."""
    from gguf import GGMLQuantizationType, quants

    return {
        linear: quants.quantize(linear.weight.detach().float().numpy(), GGMLQuantizationType.Q8_0)
        for linear in linears
        if linear.in_features % BLOCK == 0
    }


def tiled_blocks(rows: np.ndarray, inputs: int) -> tuple[int, Tensor]:
    """Quantised rows as kernels.c reads them.

    Args:
        rows: uint8 [outputs, bytes of a row], GGUF's blocks.
        inputs: weights in a row.

    Returns:
        The format, and uint8 tiles.
    """
    split = split_blocks(rows, inputs)
    codes = split.codes.astype(np.uint32)
    bits = 4 if split.format == Q4_1 else 8
    codes = codes.reshape(*codes.shape[:2], -1, 32 // bits) & (2**bits - 1)
    words = np.bitwise_or.reduce(codes << np.arange(0, 32, bits, dtype=np.uint32), axis=-1)
    parts = [_lanes_last(words), _lanes_last(split.scales[..., None])]
    if split.minima is not None:
        parts.append(_lanes_last(split.minima[..., None]))
    return split.format, torch.from_numpy(np.concatenate(parts, -1))


def tiled_halves(weight: Tensor) -> Tensor:
    """float32 [outputs, inputs] rounded to float16, as kernels.c reads it: uint8 tiles."""
    missing = -weight.shape[1] % BLOCK
    halves = nn.functional.pad(weight, (0, missing)).half().numpy()
    return torch.from_numpy(_lanes_last(halves.reshape(len(halves), -1, BLOCK)))


def _lanes_last(values: np.ndarray) -> np.ndarray:
    """[outputs, blocks, n] to bytes [tiles, blocks, n * lanes]: equal places of a tile's outputs side by side."""
    missing = -len(values) % LANES
    values = np.pad(values, ((0, missing), (0, 0), (0, 0)))
    tiles = values.reshape(-1, LANES, *values.shape[1:]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(tiles).view(np.uint8).reshape(*tiles.shape[:2], -1)


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()
