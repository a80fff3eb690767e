from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from eagle3_demo.ui.layout import place_nodes


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Parents of a random tree; parents come before children."""
    size = draw(st.integers(1, 128))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]


@given(trees())
def test_no_two_nodes_share_a_place_or_touch(parents: list[int]) -> None:
    columns, rows = place_nodes(parents)
    for column in set(columns):
        inside = sorted(row for row, other in zip(rows, columns, strict=True) if other == column)
        assert all(lower - upper >= 1 for upper, lower in itertools.pairwise(inside))


@given(trees())
def test_children_are_one_column_right_of_a_parent_level_with_the_topmost(parents: list[int]) -> None:
    columns, rows = place_nodes(parents)
    for node, parent in enumerate(parents):
        if parent < 0:
            continue
        children = [rows[child] for child, its_parent in enumerate(parents) if its_parent == parent]
        assert columns[node] == columns[parent] + 1
        assert rows[parent] == min(children)


@given(trees())
def test_the_drawing_is_no_taller_than_its_leaves(parents: list[int]) -> None:
    _, rows = place_nodes(parents)
    leaves = len(parents) - len(set(parents) - {-1})
    assert min(rows) >= 0
    assert max(rows) <= leaves - 1


def test_siblings_keep_their_order() -> None:
    columns, rows = place_nodes([-1, 0, 0, 1, 1, 2])
    assert columns == [0, 1, 1, 2, 2, 2]
    assert rows == [0, 0, 2, 0, 1, 2]


@given(trees(), st.data())
def test_the_emitted_path_is_the_top_row(parents: list[int], data: st.DataObject) -> None:
    path = [data.draw(st.integers(0, len(parents) - 1))]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    _, rows = place_nodes(parents, path)
    assert {rows[node] for node in path} == {0}


def test_a_root_alone_is_drawn() -> None:
    assert place_nodes([-1]) == ([0], [0])
