"""The Compare tab: one prompt, decoded plainly and with EAGLE-3, in turns on the same machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.settings import Method
from eagle3_demo.ui.comparison import Comparison
from eagle3_demo.ui.components import drawing
from eagle3_demo.ui.controls import read_controls
from eagle3_demo.ui.events import PLUMBING, Call, Visitors, connect_run, queue_line, reading_shown, refuse
from eagle3_demo.ui.gallery import prompt_gallery
from eagle3_demo.ui.race import alternate
from eagle3_demo.ui.recording import Recording
from eagle3_demo.ui.session import Session, StopSwitch, encode_conversation
from eagle3_demo.ui.throttle import gather

_SIDES: tuple[Method, ...] = ("autoregressive", "eagle3")


@dataclass(frozen=True, slots=True)
class CompareTab:
    """What happens in the Compare tab, apart from how it looks."""

    engine: DecodingEngine
    visitors: Visitors

    def prepare(self, session: Session) -> Any:
        """Offers Stop at once, while the comparison may still wait for its turn."""
        session.comparison = StopSwitch()
        return gr.Textbox(submit_btn=False, stop_btn="Stop")

    def compare(
        self, prompt: str, session: Session, request: gr.Request, *controls: Any
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Streams both answers; yields the views of the board and of EAGLE-3's draft trees."""
        try:
            settings = read_controls(controls)
            prompt_ids, _ = encode_conversation(self.engine, (), prompt, room=0)
        except UserError as error:
            raise refuse(str(error)) from error
        stop = session.comparison = session.comparison or StopSwitch()
        own_settings = {method: settings.model_copy(update={"method": method}) for method in _SIDES}
        recordings = {
            method: Recording(prompt, method, self.engine.speculation(own_settings[method])) for method in _SIDES
        }
        comparison = Comparison(**recordings)
        session.recording = comparison.eagle3
        race = alternate(
            {
                method: self.engine.run(prompt_ids, own_settings[method], lambda: stop.thrown, reading_shown())
                for method in _SIDES
            }
        )
        try:
            with self.visitors.present(request.session_hash, session), closing(race):
                for events in gather(race):
                    for method, event in events:
                        recordings[method].add(event)
                    yield comparison.view(), comparison.eagle3.tree_view()
        finally:
            session.comparison = None


def build_compare(
    engine: DecodingEngine,
    visitors: Visitors,
    session: gr.State,
    controls: list[Component],
    tree: gr.HTML,
    tabs: gr.Tabs,
) -> None:
    """Draws the Compare tab and connects it."""
    tab = CompareTab(engine, visitors)
    prompt = gr.Textbox(
        elem_id="compare-prompt",
        placeholder="One prompt for both …",
        show_label=False,
        label="Prompt for both",
        container=False,
        max_lines=8,
        submit_btn="Compare",
    )
    gallery = prompt_gallery(prompt)
    waiting = queue_line()
    board = drawing("board")
    board.show_trees(lambda: gr.Tabs(selected="trees"), None, tabs, **PLUMBING)
    chosen = gallery.click(lambda sample: sample[0], gallery, prompt, **PLUMBING)
    connect_run(
        prompt,
        starts=(prompt.submit, chosen.then),
        begin=Call(tab.prepare, session, prompt),
        run=Call(tab.compare, [prompt, session, *controls], [board, tree]),
        stop=Call(Session.stop_comparison, session, None),
        waiting=waiting,
    )
