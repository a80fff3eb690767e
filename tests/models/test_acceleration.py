"""Grouped attention against attention over repeated keys and values; packed products against rounded weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eagle3_demo.models.acceleration import PackedLinear, folded_attention, grouped_attention, pack_linears


@pytest.mark.parametrize("rows,length", [(1, 9), (5, 9), (5, 5)])
@pytest.mark.parametrize("heads,shared", [(6, 2), (4, 4), (3, 1)])
def test_both_groupings_equal_repeated_keys_and_values(rows: int, length: int, heads: int, shared: int) -> None:
    torch.manual_seed(0)
    query = torch.randn(1, heads, rows, 8)
    key, value = torch.randn(2, 1, shared, length, 8)
    seen = torch.rand(1, 1, rows, length) > 0.4
    seen[..., -1] = True
    mask = torch.zeros_like(seen, dtype=torch.float).masked_fill(~seen, float("-inf"))
    wide_key, wide_value = (part.repeat_interleave(heads // shared, 1) for part in (key, value))
    expected = F.scaled_dot_product_attention(query, wide_key, wide_value, mask, scale=0.3)
    torch.testing.assert_close(folded_attention(query, key, value, mask, 0.3), expected)
    torch.testing.assert_close(
        grouped_attention(nn.Module(), query, key, value, mask, 0.3)[0], expected.transpose(1, 2)
    )


def test_several_rows_without_a_mask_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows need a mask"):
        grouped_attention(nn.Module(), torch.randn(1, 2, 2, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), None)


@pytest.mark.parametrize("biases", [(False, False), (True, False), (True, True)])
def test_packed_products_are_those_of_rounded_weights(biases: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    linears = [nn.Linear(16, width, bias=bias) for width, bias in zip((5, 12), biases, strict=True)]
    x = torch.randn(1, 7, 16)
    packed = PackedLinear(*linears)
    for linear in linears:
        linear.weight.data = linear.weight.data.half().float()
    torch.testing.assert_close(packed(x), torch.cat([linear(x) for linear in linears], -1))
    assert (packed.in_features, packed.out_features) == (16, 17)


def test_rows_do_not_depend_on_their_number() -> None:
    """Why verifying many rows gives the very products that decoding one by one gives."""
    torch.manual_seed(0)
    packed = PackedLinear(nn.Linear(64, 96))
    x = torch.randn(13, 64)
    whole = packed(x)
    assert all(torch.equal(packed(x[row : row + 1])[0], whole[row]) for row in range(13))


def test_pack_linears_reaches_nested_layers_and_leaves_the_rest() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4)), nn.Embedding(3, 8))
    pack_linears(module)
    kinds = [type(part).__name__ for part in module.modules()]
    assert kinds == ["Sequential", "PackedLinear", "Sequential", "PackedLinear", "LayerNorm", "Embedding"]
