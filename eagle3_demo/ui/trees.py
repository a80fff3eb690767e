"""The Draft trees tab: every step of a run, drawn by our JavaScript from compact JSON.

While a run streams, its newest trees are sent along. Older ones are fetched in windows when somebody steps back to
them, and all of them for a download, so that a long run never becomes a long message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from eagle3_demo.ui.components import drawing
from eagle3_demo.ui.events import PLUMBING
from eagle3_demo.ui.recording import Recording
from eagle3_demo.ui.session import Session


@dataclass(frozen=True, slots=True)
class TreesTab:
    """What happens in the Draft trees tab; `first` is the recorded run of a visitor who has run nothing yet."""

    first: Recording | None = None

    def fetch_steps(self, session: Session, event: gr.EventData) -> dict[str, Any]:
        """The draft trees around the step that the page asks for (`index`), the newest when it is unclear, or `all`."""
        recording = session.recording or self.first
        if recording is None:
            return {}
        everything = (event._data or {}).get("all") is True and recording.finished
        return recording.tree_view(_step_of(event), everything=everything)


def open_trees(session: Session, recording: Recording, event: gr.EventData) -> tuple[Any, Any]:
    """Opens the tab with a run, at the step that the page asks for (`index`): the drawing's value, and the tabs."""
    session.recording = recording
    return recording.opened(_step_of(event)), gr.Tabs(selected="trees")


def _step_of(event: gr.EventData) -> int | None:
    index = (event._data or {}).get("index")
    return index if isinstance(index, int) else None


def build_trees(tree: gr.HTML, session: gr.State, first: Recording | None) -> None:
    """Places the drawing and connects it."""
    tab = TreesTab(first)
    tree.render()
    tree.need_steps(tab.fetch_steps, session, tree, **PLUMBING)


def tree_drawing(first: Recording | None) -> gr.HTML:
    """The drawing, made before the tab so that Chat and Race can stream into it."""
    return drawing("trees", first.opened() if first else None, render=False)
