"""Grouped attention against attention over repeated keys and values; which layers are packed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eagle3_demo.models.acceleration import folded_attention, grouped_attention, pack_linears
from eagle3_demo.models.packed_linear import PackedLinear


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


def test_pack_linears_reaches_nested_layers_and_leaves_the_rest() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4)), nn.Embedding(3, 8))
    pack_linears(module)
    packed = [isinstance(part, PackedLinear) for part in module.modules()]
    assert packed == [False, True, False, True, False, False]
