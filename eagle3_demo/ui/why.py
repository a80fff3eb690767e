"""Why a race ended as it did: the speedup taken apart into measured parts, and what other trees would have done.

The speedup is an identity, not a model: (tokens a round) x (seconds of a plain step) / (seconds of a round), where a
round is draft + verify + commit. Everything here comes from the two runs' own clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle3_demo.decoding.events import RunStatistics, StepEvent, TreeRecord
from eagle3_demo.ui.recording import Recording

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 60)


def explanation(left: Recording, right: Recording) -> dict[str, Any] | None:
    """The panel's data; None where the left side does not decode plainly or the right side never drafted.

    `budget` walks from the ideal to what was measured: each row is a speedup and what took it from the row above.
    """
    plain, fast = left.statistics, right.statistics
    if left.speculation.active or not (plain.target_forwards and fast.target_forwards and fast.drafted_tokens):
        return None
    rounds = fast.target_forwards
    step = 1000 * plain.seconds_decode / plain.target_forwards
    draft, verify, commit = (
        1000 * seconds / rounds for seconds in (fast.seconds_draft, fast.seconds_verify, fast.seconds_commit)
    )
    tau = fast.acceptance_length
    deepest = max(max(_depths(event.tree)) for event in right.events)
    return {
        "tau": round(tau, 3),
        "step": round(step, 2),
        "draft": round(draft, 2),
        "verify": round(verify, 2),
        "commit": round(commit, 2),
        "speedup": round(tau * step / (draft + verify + commit), 3),
        "budget": [
            _row(deepest + 1, "every guess right, guessing and checking free"),
            _row(tau, "guesses that the target did not share"),
            _row(tau * step / verify, f"checking a tree takes {verify / step:.2f} plain steps"),
            _row(tau * step / (verify + draft), f"drafting takes {draft / step:.2f} plain steps"),
            _row(tau * step / (verify + draft + commit), f"bookkeeping takes {commit / step:.2f} plain steps"),
        ],
        "depths": acceptance_by_depth(right.events),
        "trees": other_trees(right.events, fast, step),
    }


def acceptance_by_depth(events: Sequence[StepEvent]) -> list[dict[str, int]]:
    """For each depth: how many steps got so far with something drafted there (`reached`), and how many went on."""
    counts: dict[int, list[int]] = {}
    for event in events:
        depths = _depths(event.tree)
        accepted = len(event.tree.path)
        for depth in range(1, max(depths) + 1):
            drafted_there = any(
                depths[node] == depth and event.tree.statuses[node] in ("accepted", "rejected")
                for node in range(len(depths))
            )
            if drafted_there:
                count = counts.setdefault(depth, [0, 0])
                count[0] += 1
                count[1] += accepted >= depth
    return [
        {"depth": depth, "reached": reached, "accepted": accepted}
        for depth, (reached, accepted) in sorted(counts.items())
    ]


def other_trees(events: Sequence[StepEvent], fast: RunStatistics, step: float) -> list[dict[str, Any]]:
    """What smaller trees would have given on the recorded steps: `nodes`, acceptance length `tau`, `speedup`.

    A tree of n nodes keeps the n - 1 likeliest guesses. Its time is estimated: verification on the line between one
    node (a plain step) and the recorded tree, drafting by the levels that are left.

    Args:
        events: the run's steps.
        fast: its totals.
        step: milliseconds of a plain step.
    """
    drafted = [event for event in events if len(event.tree.tokens) > 1]
    largest = max(len(event.tree.tokens) for event in drafted)
    rounds = fast.target_forwards
    # Trees chosen by cost differ in size, and where nothing pays they are a root alone.
    mean = 1 + sum(len(event.tree.tokens) - 1 for event in drafted) / rounds
    draft, verify, commit = (
        1000 * seconds / rounds for seconds in (fast.seconds_draft, fast.seconds_verify, fast.seconds_commit)
    )
    rows = []
    for nodes in [size for size in SIZES if size < largest] + [largest]:
        kept = [likeliest_nodes(event.tree, nodes) for event in drafted]
        accepted = sum(_accepted_within(event.tree, some) for event, some in zip(drafted, kept, strict=True))
        tau = fast.acceptance_length if nodes == largest else 1 + accepted / rounds
        levels = [
            max(_depths(event.tree)[node] for node in some) / max(_depths(event.tree))
            for event, some in zip(drafted, kept, strict=True)
        ]
        share = sum(levels) / len(levels)
        checked = verify if nodes == largest else step + (verify - step) * (nodes - 1) / (mean - 1)
        seconds = draft * share + checked + commit
        rows.append(
            {
                "nodes": nodes,
                "tau": round(tau, 2),
                "speedup": round(tau * step / seconds, 2),
                "measured": nodes == largest,
            }
        )
    return rows


def likeliest_nodes(tree: TreeRecord, nodes: int) -> set[int]:
    """The root and the `nodes - 1` likeliest guesses; with a node its ancestors are likelier, so they are in."""
    reach: list[float] = []
    for parent, value in zip(tree.parents, tree.log_probabilities, strict=True):
        reach.append(value + (reach[parent] if parent >= 0 else 0.0))
    best = sorted(range(1, len(reach)), key=lambda node: (-reach[node], node))
    return {0, *best[: nodes - 1]}


def _accepted_within(tree: TreeRecord, kept: set[int]) -> int:
    for count, node in enumerate(tree.path):
        if node not in kept:
            return count
    return len(tree.path)


def _depths(tree: TreeRecord) -> list[int]:
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def _row(speedup: float, name: str) -> dict[str, Any]:
    return {"speedup": round(speedup, 2), "name": name}
