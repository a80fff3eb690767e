"""The Race tab: one prompt, decoded in two ways, in turns on the same machine; recorded races play without a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from gradio.components import Component

from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.race import start_race
from eagle3_demo.ui.comparison import Comparison
from eagle3_demo.ui.components import drawing
from eagle3_demo.ui.controls import MOST_TOKENS, read_controls
from eagle3_demo.ui.events import PLUMBING, Call, Visitors, connect_run, queue_line, reading_shown, refuse
from eagle3_demo.ui.examples import Example
from eagle3_demo.ui.gallery import prompt_gallery
from eagle3_demo.ui.racers import RACERS
from eagle3_demo.ui.recording import Recording
from eagle3_demo.ui.session import Session, StopSwitch, encode_conversation
from eagle3_demo.ui.throttle import gather
from eagle3_demo.ui.trees import open_trees

DEFAULT_RACERS = ("plain", "eagle3")


@dataclass(frozen=True, slots=True)
class RaceTab:
    """What happens in the Race tab, apart from how it looks."""

    engine: DecodingEngine
    visitors: Visitors
    examples: Mapping[str, Example] = field(default_factory=dict)
    most_tokens: int = MOST_TOKENS

    def prepare(self, session: Session) -> Any:
        """Offers Stop at once, while the race may still wait for its turn."""
        session.comparison = StopSwitch()
        return gr.Textbox(submit_btn=False, stop_btn="Stop")

    def race(
        self, prompt: str, left: str, right: str, session: Session, request: gr.Request, *controls: Any
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """Streams both answers; yields the board's view and that of the draft trees of the side that is looked at."""
        try:
            settings = read_controls(controls, self.most_tokens)
            prompt_ids, _ = encode_conversation(self.engine, (), prompt, room=0)
            sides = {"left": _racer(left).applied(settings), "right": _racer(right).applied(settings)}
            speculation = {side: self.engine.speculation(own) for side, own in sides.items()}
        except UserError as error:
            raise refuse(str(error)) from error
        stop = session.comparison = session.comparison or StopSwitch()
        recordings = {side: Recording(prompt, own, speculation[side]) for side, own in sides.items()}
        comparison = session.race = Comparison(**recordings)
        session.recording = comparison.right
        race = start_race(self.engine, prompt_ids, sides, lambda: stop.thrown, reading_shown())
        try:
            with self.visitors.present(request.session_hash, session), closing(race):
                for events in gather(race):
                    for side, event in events:
                        recordings[side].add(event)
                    yield comparison.view(), session.live_trees(comparison.left, comparison.right)
        finally:
            session.comparison = None

    def show_example(self, prompt: str, session: Session) -> tuple[Any, Any]:
        """Plays the recorded race of a prompt from the gallery; leaves the board alone where there is none."""
        example = next((example for example in self.examples.values() if example.prompt == prompt), None)
        if example is None or session.comparison:
            return gr.skip(), gr.skip()
        session.race, session.recording = example.comparison, example.comparison.right
        return example.comparison.view(autoplay=True), example.comparison.right.opened()

    def open_step(self, session: Session, event: gr.EventData) -> tuple[Any, Any]:
        """Opens the Draft trees tab at the step of the token that was chosen, on the side it was chosen from."""
        first = next(iter(self.examples.values()), None)
        race = session.race or (first.comparison if first else None)
        if race is None:
            return gr.skip(), gr.skip()
        side = (event._data or {}).get("side")
        return open_trees(session, race.left if side == "left" else race.right, event)


def _racer(name: str) -> Any:
    if name not in RACERS:
        raise UserError(f"there is no way to decode called {str(name)[:40]!r}; choose one of {', '.join(RACERS)}")
    return RACERS[name]


def build_race(
    engine: DecodingEngine,
    visitors: Visitors,
    session: gr.State,
    controls: list[Component],
    tree: gr.HTML,
    tabs: gr.Tabs,
    examples: Mapping[str, Example],
    most_tokens: int,
) -> tuple[RaceTab, gr.HTML, gr.Textbox]:
    """Draws the Race tab and connects it; returns it with the board and the prompt's box."""
    tab = RaceTab(engine, visitors, examples, most_tokens)
    first = next(iter(examples.values()), None)
    prompt = gr.Textbox(
        value=first.prompt if first else "",
        elem_id="race-prompt",
        placeholder="One prompt for both …",
        show_label=False,
        label="Prompt for both",
        container=False,
        max_lines=8,
        submit_btn="Race live",
    )
    gallery = prompt_gallery(
        prompt, {name: example.acceptance_length for name, example in examples.items()}, "race-gallery"
    )
    with gr.Accordion("Who races (any two ways)", open=False), gr.Row(elem_id="racers"):
        choices = [(racer.label, racer.name) for racer in RACERS.values()]
        left, right = (
            gr.Dropdown(choices, value=value, label=label, elem_id=f"racer-{label.lower()}", filterable=False)
            for label, value in zip(("Left", "Right"), DEFAULT_RACERS, strict=True)
        )
    waiting = queue_line("race-queue")
    board = drawing("board", first.comparison.view(autoplay=True) if first else None)
    board.open_step(tab.open_step, session, [tree, tabs], **PLUMBING)
    chosen = gallery.click(lambda sample: sample[0], gallery, prompt, **PLUMBING)
    chosen.then(tab.show_example, [prompt, session], [board, tree], **PLUMBING)
    connect_run(
        prompt,
        starts=(prompt.submit,),
        begin=Call(tab.prepare, session, prompt),
        run=Call(tab.race, [prompt, left, right, session, *controls], [board, tree]),
        stop=Call(Session.stop_comparison, session, None),
        waiting=waiting,
    )
    return tab, board, prompt
