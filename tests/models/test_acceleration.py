"""Grouped attention against attention over repeated keys and values; which layers are packed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eagle3_demo.models.acceleration import pack_linears
from eagle3_demo.models.attention import CachedAttention, folded_attention, grouped_attention
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


@pytest.mark.parametrize("heads,shared,size", [(6, 2, 64), (4, 4, 16), (3, 1, 128), (4, 2, 80)])
@pytest.mark.parametrize("rows,pending,length", [(1, 0, 0), (1, 0, 37), (5, 0, 9), (3, 4, 21)])
def test_attention_over_a_cache_equals_pytorchs(
    heads: int, shared: int, size: int, rows: int, pending: int, length: int
) -> None:
    torch.manual_seed(0)
    attention = CachedAttention(heads, shared, size, 0.2)
    assert attention.takes(rows)
    capacity, tree = length + pending + rows + 3, pending + rows
    keys, values = torch.randn(2, shared, capacity, size)
    visible = torch.rand(rows, tree) > 0.5
    visible[range(rows), range(pending, tree)] = True
    angles = torch.rand(rows + 2, size // 2)
    cosines, sines = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], -1)
    positions = torch.randint(0, rows + 2, (rows,))
    projected = torch.randn(rows, heads + 2 * shared, size)
    query, key, value = (part.transpose(0, 1).clone() for part in projected.split([heads, shared, shared], 1))
    cos, sin = cosines[positions], sines[positions]
    query, key = (part * cos + part.roll(size // 2, -1) * sin for part in (query, key))
    expected_keys, expected_values = keys.clone(), values.clone()
    new = slice(length + pending, length + tree)
    expected_keys[:, new], expected_values[:, new] = key, value
    seen = torch.cat([torch.ones(rows, length, dtype=torch.bool), visible], 1)
    expected = F.scaled_dot_product_attention(
        query[None],
        expected_keys[None, :, : length + tree],
        expected_values[None, :, : length + tree],
        seen,
        scale=0.2,
        enable_gqa=True,
    )
    output = attention(
        projected.flatten(1), (cosines, sines), positions, keys.data_ptr(), values.data_ptr(),
        visible if tree > 1 else None, length, pending, capacity,
    )  # fmt: skip
    torch.testing.assert_close(output, expected[0].transpose(0, 1).flatten(1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close((keys, values), (expected_keys, expected_values))


def test_a_row_is_the_same_in_a_tree_and_alone() -> None:
    """Bit for bit: rows that a node does not see leave no trace in its sums."""
    torch.manual_seed(0)
    attention, length, capacity = CachedAttention(2, 1, 64, 0.125), 50, 70
    cache = torch.randn(2, 1, capacity, 64)
    rotary = torch.rand(60, 64), torch.rand(60, 64)
    projected = torch.randn(5, 4, 64)
    path = [0, 2, 4]
    visible = torch.eye(5, dtype=torch.bool)
    for place, node in enumerate(path):
        visible[node, path[:place]] = True

    def run(nodes: list[int], seen: torch.Tensor) -> torch.Tensor:
        keys, values = cache.clone()
        where = (torch.tensor(nodes) + 50, keys.data_ptr(), values.data_ptr(), seen, length, 0, capacity)
        return attention(projected[nodes].flatten(1), rotary, *where)

    in_tree = run([0, 1, 2, 3, 4], visible)
    alone = run(path, torch.ones(3, 3, dtype=torch.bool).tril())
    assert torch.equal(in_tree[path], alone)
