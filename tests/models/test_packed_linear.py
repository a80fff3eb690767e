"""Packed products against products over the weights they hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor, nn

from eagle3_demo.models.gguf_blocks import split_blocks
from eagle3_demo.models.native import native_kernels
from eagle3_demo.models.packed_linear import FbgemmLinear, NativeLinear, Norm, PackedLinear, packed_linear

Make = Callable[[nn.Linear], PackedLinear]


def native(linear: nn.Linear) -> PackedLinear:
    packed = packed_linear(linear)
    assert isinstance(packed, NativeLinear), native_kernels()[1]
    return packed


def fbgemm(linear: nn.Linear) -> PackedLinear:
    return FbgemmLinear(linear.weight.detach(), linear.bias)


def quantised(linear: nn.Linear, kind: str) -> np.ndarray:
    """The layer's weights as GGUF blocks; its own weights become what the blocks say."""
    rows: np.ndarray = quants.quantize(linear.weight.detach().numpy(), GGMLQuantizationType[kind])
    linear.weight = nn.Parameter(torch.from_numpy(split_blocks(rows, linear.in_features).weights()))
    return rows


def expected(linear: nn.Linear, x: Tensor) -> Tensor:
    bias = None if linear.bias is None else linear.bias.double()
    return nn.functional.linear(x.double(), linear.weight.double(), bias).float()


@pytest.mark.parametrize("biases", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("backend", ["native", "FBGEMM"])
def test_float16_products_are_those_of_rounded_weights(
    biases: tuple[bool, bool], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "FBGEMM":
        monkeypatch.setattr("eagle3_demo.models.packed_linear.native_kernels", lambda: (None, "switched off"))
    torch.manual_seed(0)
    linears = [nn.Linear(40, width, bias=bias) for width, bias in zip((5, 18), biases, strict=True)]
    x = torch.randn(1, 15, 40)
    packed = packed_linear(*linears)
    assert isinstance(packed, FbgemmLinear if backend == "FBGEMM" else NativeLinear)
    for linear in linears:
        linear.weight.data = linear.weight.data.half().float()
    torch.testing.assert_close(packed(x), torch.cat([expected(linear, x) for linear in linears], -1))
    assert (packed.in_features, packed.out_features) == (40, 23)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("outputs", [16, 50])
def test_blocks_are_multiplied_without_rounding(kind: str, outputs: int) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(96, outputs), nn.Linear(96, 3, bias=False)]
    blocks = {linear: quantised(linear, kind) for linear in linears}
    packed = packed_linear(*linears, blocks=blocks)
    x = torch.randn(29, 96)
    torch.testing.assert_close(packed(x), torch.cat([expected(linear, x) for linear in linears], -1))


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_blocks_equal_what_the_gguf_package_reads(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((7, 64)).astype(np.float32)
    rows = quants.quantize(values, GGMLQuantizationType[kind])
    assert np.array_equal(split_blocks(rows, 64).weights(), quants.dequantize(rows, GGMLQuantizationType[kind]))


def test_bytes_of_another_format_are_refused() -> None:
    with pytest.raises(ValueError, match="66 bytes for 64 weights"):
        split_blocks(np.zeros((3, 66), dtype=np.uint8), 64)


def test_layers_without_common_blocks_are_rounded_to_float16() -> None:
    first, second = nn.Linear(32, 16), nn.Linear(32, 16)
    mixed = {first: quantised(first, "Q4_1"), second: quantised(second, "Q8_0")}
    for blocks in ({first: mixed[first]}, mixed):
        x = torch.randn(2, 32)
        both = torch.cat([linear.weight.half().float() for linear in (first, second)])
        product = packed_linear(first, second, blocks=blocks)(x)
        torch.testing.assert_close(product, nn.functional.linear(x, both, torch.cat([first.bias, second.bias])))


@pytest.mark.parametrize("make", [native, fbgemm])
def test_the_norm_is_applied_first_and_products_are_added_onto(make: Make) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 20, bias=False)
    packed = make(linear)
    linear.weight.data = linear.weight.data.half().float()
    x, weight, onto = 5 * torch.randn(4, 48), torch.rand(48), torch.randn(4, 20)
    normed = nn.functional.rms_norm(x, (48,), weight, 1e-5)
    before = onto.clone()
    result = packed(x, Norm(weight, 1e-5), onto)
    assert result is onto
    torch.testing.assert_close(result, before + expected(linear, normed))
    torch.testing.assert_close(packed(x, Norm(weight, 1e-5)), expected(linear, normed))


@pytest.mark.parametrize("make", [native, fbgemm])
def test_rows_do_not_depend_on_their_number(make: Make) -> None:
    """Why verifying many rows gives the very products that decoding one by one gives."""
    torch.manual_seed(0)
    packed = make(nn.Linear(64, 96))
    x = torch.randn(29, 64)
    whole = packed(x)
    assert all(torch.equal(packed(x[:rows]), whole[:rows]) for rows in range(1, 29))


def test_rows_of_a_wider_tensor_are_read_right() -> None:
    packed = native(nn.Linear(32, 16))
    x = torch.randn(3, 64)
    assert torch.equal(packed(x[:, 32:]), packed(x[:, 32:].clone()))
