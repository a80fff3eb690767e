"""One engine step as data that can be drawn: nodes with a place, a label, a probability and a verdict."""

from __future__ import annotations

import math
from typing import Any

from eagle3_demo.decoding.events import StepEvent
from eagle3_demo.ui.layout import place_nodes


def step_view(event: StepEvent) -> dict[str, Any]:
    """Everything the page draws of one step, as JSON data.

    The target's own token is drawn as one more node after the drafted ones, with the status `target`, below the last
    accepted node.
    """
    tree = event.tree
    last_accepted = tree.path[-1] if tree.path else 0
    parents = [*tree.parents, last_accepted]
    columns, rows = place_nodes(parents, {*tree.path, len(tree.parents)})
    return {
        "index": event.index,
        "texts": [visible(text) for text in (*tree.texts, tree.target_text)],
        "parents": parents,
        "probabilities": [None, *(round(math.exp(value), 4) for value in tree.log_probabilities[1:]), None],
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


def visible(text: str) -> str:
    """Token text with its white space made visible; an empty text is named."""
    if not text:
        return "(no text)"
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")


def _summary(event: StepEvent) -> str:
    emitted = f"{len(event.tokens)} token{'' if len(event.tokens) == 1 else 's'} emitted"
    if event.index == 0:
        return f"The target read the prompt and chose the first token itself; {emitted}."
    drafted = len(event.tree.tokens) - 1
    if not drafted:
        return f"Nothing was drafted; {emitted} by the target itself."
    return f"{len(event.tree.path)} of {drafted} drafted tokens accepted, then one of the target's own; {emitted}."
