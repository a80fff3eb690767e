"""One engine step as data that can be drawn: nodes with a place, a label, probabilities and a verdict."""

from __future__ import annotations

import math
from typing import Any

from eagle3_demo.decoding.events import StepEvent
from eagle3_demo.ui.layout import place_nodes


def step_view(event: StepEvent) -> dict[str, Any]:
    """Everything the page draws of one step, as JSON data.

    The target's own token is drawn as one more node after the drafted ones, with the status `target`, below the last
    accepted node. `target` and `tops` are empty where the engine was not asked to explain; `tops` holds the target's
    likeliest tokens at the root and at each accepted node, in that order.
    """
    tree = event.tree
    last_accepted = tree.path[-1] if tree.path else 0
    parents = [*tree.parents, last_accepted]
    columns, rows = place_nodes(parents, {*tree.path, len(tree.parents)})
    return {
        "index": event.index,
        "texts": [visible(text) for text in (*tree.texts, tree.target_text)],
        "parents": parents,
        "probabilities": [None, *(_probability(value) for value in tree.log_probabilities[1:]), None],
        "target": [None, *(_probability(value) for value in tree.target_log_probabilities[1:])]
        if tree.target_log_probabilities
        else [],
        "tops": [[[visible(text), _probability(value)] for text, value in top] for top in tree.target_tops],
        "path": list(tree.path),
        "statuses": [*tree.statuses, "target"],
        "columns": columns,
        "rows": rows,
        "summary": _summary(event),
        "milliseconds": {
            "draft": round(1000 * event.seconds_draft, 1),
            "verify": round(1000 * event.seconds_verify, 1),
            "commit": round(1000 * event.seconds_commit, 1),
        },
    }


def fallen_text(event: StepEvent) -> str:
    """The head's likeliest guess where the target chose otherwise, as it would have read; empty where none fell."""
    tree = event.tree
    fallen = [node for node, status in enumerate(tree.statuses) if status == "rejected"]
    last = tree.path[-1] if tree.path else 0
    here = [node for node in fallen if tree.parents[node] == last]
    return tree.texts[max(here, key=tree.log_probabilities.__getitem__)] if here else ""


def visible(text: str) -> str:
    """Token text with its white space made visible; an empty text is named."""
    if not text:
        return "(no text)"
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")


def _probability(log_probability: float) -> float:
    return round(math.exp(log_probability), 4)


def _summary(event: StepEvent) -> str:
    emitted = f"{len(event.tokens)} token{'' if len(event.tokens) == 1 else 's'} emitted"
    choice = f" {event.choice[0].upper()}{event.choice[1:]}." if event.choice else ""
    if event.index == 0:
        return f"The target read the prompt and chose the first token itself; {emitted}."
    drafted = len(event.tree.tokens) - 1
    if not drafted:
        return f"Nothing was drafted; {emitted} by the target itself.{choice}"
    accepted = f"{len(event.tree.path)} of {drafted} drafted tokens accepted, then one of the target's own"
    return f"{accepted}; {emitted}.{choice}"
