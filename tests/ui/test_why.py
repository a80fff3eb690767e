from __future__ import annotations

import itertools
import math

import pytest

from eagle3_demo.decoding.events import TreeRecord
from eagle3_demo.ui.examples import as_examples
from eagle3_demo.ui.why import acceptance_by_depth, explanation, likeliest_nodes
from tests.ui.examples import scripted_trace


def race():  # type: ignore[no-untyped-def]
    return as_examples([scripted_trace()])["code"].comparison


def test_the_formula_gives_the_measured_speedup() -> None:
    comparison = race()
    why = explanation(comparison.left, comparison.right)
    assert why is not None
    measured = comparison.right.statistics.tokens_per_second / comparison.left.statistics.tokens_per_second
    assert why["speedup"] == pytest.approx(measured, rel=0.02)
    assert why["budget"][-1]["speedup"] == pytest.approx(why["speedup"], abs=0.01)
    assert why["budget"][0]["speedup"] > why["budget"][1]["speedup"] == pytest.approx(why["tau"], abs=0.01)


def test_acceptance_by_depth_counts_steps_that_got_so_far() -> None:
    events = race().right.events
    depths = acceptance_by_depth(events)
    assert depths[0]["reached"] == sum(len(event.tree.tokens) > 1 for event in events)
    assert sum(row["accepted"] for row in depths) == sum(len(event.tree.path) for event in events)
    for upper, lower in itertools.pairwise(depths):
        assert lower["reached"] <= upper["accepted"]


def test_the_whole_tree_is_what_was_measured_and_smaller_trees_accept_no_more() -> None:
    comparison = race()
    why = explanation(comparison.left, comparison.right)
    assert why is not None
    last = why["trees"][-1]
    assert last["measured"]
    assert last["tau"] == pytest.approx(why["tau"], abs=0.01)
    lengths = [row["tau"] for row in why["trees"]]
    assert lengths == sorted(lengths)


def test_two_drafting_sides_have_no_plain_step_to_explain_by() -> None:
    comparison = race()
    assert explanation(comparison.right, comparison.right) is None


def test_kept_nodes_are_closed_under_ancestors() -> None:
    log = math.log
    tree = TreeRecord(
        tokens=(1, 2, 3, 4, 5),
        texts=("a", "b", "c", "d", "e"),
        parents=(-1, 0, 0, 1, 3),
        log_probabilities=(0.0, log(0.5), log(0.4), log(0.9), log(0.99)),
        statuses=("root", "accepted", "rejected", "accepted", "accepted"),
        path=(1, 3, 4),
        target_token=9,
        target_text="x",
    )
    for count in range(2, 6):
        kept = likeliest_nodes(tree, count)
        assert len(kept) == count
        assert all(tree.parents[node] in kept for node in kept if node)
    assert likeliest_nodes(tree, 3) == {0, 1, 3}
