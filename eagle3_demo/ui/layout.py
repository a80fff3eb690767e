"""Where each node of a draft tree is drawn: a column for its depth, a row among its relatives.

Invariants: no two nodes share a place, a child is one column right of its parent, a parent stands level with its
topmost child, and what the step emitted is the top row, read from left to right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def place_nodes(parents: Sequence[int], emitted: Collection[int] = ()) -> tuple[list[int], list[int]]:
    """Columns and rows of the nodes of one tree, drawn from left to right.

    Args:
        parents: parent index of each node, -1 for the root; parents come before children.
        emitted: the nodes of one path down from the root; each is placed above its siblings.

    Returns:
        Column of each node (its depth) and row of each node, 0 at the top.
    """
    children: list[list[int]] = [[] for _ in parents]
    columns: list[int] = []
    for node, parent in enumerate(parents):
        columns.append(columns[parent] + 1 if parent >= 0 else 0)
        if parent >= 0:
            children[parent].append(node)
    for siblings in children:
        siblings.sort(key=lambda node: node not in emitted)
    rows = [0] * len(parents)
    for row, leaf in enumerate(_leaves(children)):
        rows[leaf] = row
    for node in reversed(range(len(parents))):
        if children[node]:
            rows[node] = rows[children[node][0]]
    return columns, rows


def _leaves(children: Sequence[Sequence[int]]) -> list[int]:
    """Leaves from top to bottom."""
    found: list[int] = []
    waiting = [0] if children else []
    while waiting:
        node = waiting.pop()
        waiting.extend(reversed(children[node]))
        if not children[node]:
            found.append(node)
    return found
