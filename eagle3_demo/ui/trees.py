"""The Draft trees tab: every step of the session's last run, drawn by our JavaScript from compact JSON.

While a run streams, its newest trees are sent along. Older ones are fetched in windows when somebody steps back to
them, so that a long run never becomes a long message.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle3_demo.ui.components import drawing
from eagle3_demo.ui.events import PLUMBING
from eagle3_demo.ui.session import Session


def fetch_steps(session: Session, event: gr.EventData) -> dict[str, Any]:
    """The window of draft trees around the step that the page asks for (`index`); the newest run when it is unclear."""
    if session.recording is None:
        return {}
    wanted = (event._data or {}).get("index")
    return session.recording.tree_view(wanted if isinstance(wanted, int) else None)


def build_trees(tree: gr.HTML, session: gr.State) -> None:
    """Places the drawing and connects it."""
    tree.render()
    tree.need_steps(fetch_steps, session, tree, **PLUMBING)


def tree_drawing() -> gr.HTML:
    """The drawing, made before the tab so that Chat and Compare can stream into it."""
    return drawing("trees", render=False)
