"""The Chat tab: a conversation, streamed, with what decoding did for each answer.

A question takes two steps: it is checked and shown at once; then it waits for its turn and is
answered. One run at a time uses the engine, so visitors never slow each other down.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.ui.components import drawing
from eagle3_demo.ui.controls import MOST_TOKENS, read_controls
from eagle3_demo.ui.events import (
    CHECK,
    PLUMBING,
    Call,
    Visitors,
    connect_run,
    connect_start,
    queue_line,
    reading_shown,
    refuse,
)
from eagle3_demo.ui.examples import Example
from eagle3_demo.ui.gallery import prompt_gallery
from eagle3_demo.ui.markdown import literal_markdown
from eagle3_demo.ui.recording import Recording
from eagle3_demo.ui.session import Exchange, Request, Session, encode_conversation
from eagle3_demo.ui.throttle import gather
from eagle3_demo.ui.trees import open_trees

_WELCOME = (
    "### Ask the model something\n"
    "The answer streams in as usual. The panel beside it marks the tokens that the small **draft head** had guessed, "
    "and measures how fast that made the model."
)


@dataclass(frozen=True, slots=True)
class ChatTab:
    """What happens in the Chat tab, apart from how it looks."""

    engine: DecodingEngine
    visitors: Visitors
    most_tokens: int = MOST_TOKENS

    def accept(self, prompt: str, session: Session, *controls: Any) -> tuple[Any, ...]:
        """Checks a question and shows it; nothing changes when it is refused."""
        if session.running:
            raise refuse("The last question is still being answered. Press Stop to ask another.")
        answered = [exchange for exchange in session.exchanges if exchange.answer]
        try:
            settings = read_controls(controls, self.most_tokens)
            room = min(settings.max_new_tokens, self.engine.max_context // 4)
            prompt_ids, dropped = encode_conversation(self.engine, answered, prompt, room)
        except UserError as error:
            raise refuse(str(error)) from error
        if dropped:
            gr.Info(f"The {dropped} oldest questions no longer fit the model's context and are left out.")
        exchange = Exchange(prompt)
        session.exchanges = [*answered, exchange]
        session.waiting = Request(exchange, prompt_ids, settings.model_copy(update={"explain": True}))
        return show_conversation(session), {"waiting": True}, gr.Textbox(value="", submit_btn=False, stop_btn=True)

    def answer(self, session: Session, request: gr.Request) -> Iterator[tuple[Any, ...]]:
        """Streams the answer to the waiting question into conversation, panel and draft trees."""
        asked, session.waiting = session.waiting, None
        if asked is None:
            return
        recording = Recording(asked.exchange.question, asked.settings, self.engine.speculation(asked.settings))
        session.running, session.recording, asked.exchange.recording = asked, recording, recording
        run = self.engine.run(asked.prompt_ids, asked.settings, lambda: asked.stop.thrown, reading_shown())
        try:
            with self.visitors.present(request.session_hash, session), closing(run):
                for events in gather(run):
                    for event in events:
                        recording.add(event)
                    asked.exchange.answer = recording.statistics.text
                    asked.exchange.note = recording.summary() if recording.finished else ""
                    yield show_conversation(session), answer_panel(session), session.live_trees(recording)
        finally:
            session.running = None

    def retry(self, session: Session, *controls: Any) -> tuple[Any, ...]:
        """Asks the last question again, with the settings as they are now."""
        question = self._take_last(session)
        return self.accept(question, session, *controls)

    def edit(self, session: Session) -> tuple[Any, ...]:
        """Takes the last question back into the box, to be changed and asked again."""
        question = self._take_last(session)
        return show_conversation(session), answer_panel(session), question

    def _take_last(self, session: Session) -> str:
        if session.running or session.waiting:
            raise refuse("The last question is still being answered. Press Stop first.")
        if not session.exchanges:
            raise refuse("There is no question yet. Ask one first.")
        return session.exchanges.pop().question

    def show_answer(self, session: Session, event: gr.EventData) -> Any:
        """The panel with the answer that the page asks for (`run`)."""
        return answer_panel(session, (event._data or {}).get("run"))

    def open_step(self, session: Session, event: gr.EventData) -> tuple[Any, Any]:
        """Opens the Draft trees tab at the step of the token that was chosen."""
        chosen = _recording(session, (event._data or {}).get("run"))
        return (gr.skip(), gr.skip()) if chosen is None else open_trees(session, chosen, event)

    def clear(self, session: Session) -> tuple[Any, ...]:
        """Forgets the conversation, and ends the answer that is being written."""
        session.stop_chat()
        session.waiting, session.exchanges = None, []
        return [], {}


def answer_panel(session: Session, run: object = None) -> dict[str, Any]:
    """The panel's view of one answer of the conversation, the last one when not named, and of its neighbours."""
    chosen = _recording(session, run)
    if chosen is None:
        return {}
    numbers = [exchange.recording.number for exchange in session.exchanges if exchange.recording]
    return chosen.answer_view() | {"answers": numbers}


def _recording(session: Session, run: object) -> Recording | None:
    recordings = [exchange.recording for exchange in session.exchanges if exchange.recording]
    named = [recording for recording in recordings if recording.number == run]
    return named[0] if named else recordings[-1] if recordings else None


def show_conversation(session: Session) -> list[dict[str, Any]]:
    """The conversation as Chatbot messages, every typed or generated character literal."""
    messages: list[dict[str, Any]] = []
    for exchange in session.exchanges:
        messages.append({"role": "user", "content": literal_markdown(exchange.question)})
        if exchange.answer or exchange.note:
            content = [literal_markdown(exchange.answer)]
            if exchange.note:
                # A block of its own: an unclosed code fence in the answer cannot swallow it.
                content.append(f'<small class="answer-note">{html.escape(exchange.note)}</small>')
            messages.append({"role": "assistant", "content": content})
    return messages


def build_chat(
    engine: DecodingEngine,
    visitors: Visitors,
    session: gr.State,
    controls: list[Component],
    tree: gr.HTML,
    tabs: gr.Tabs,
    examples: Mapping[str, Example],
    most_tokens: int,
) -> None:
    """Draws the Chat tab and connects it."""
    tab = ChatTab(engine, visitors, most_tokens)
    with gr.Row(equal_height=False):
        with gr.Column(scale=5, min_width=300):
            conversation = gr.Chatbot(
                elem_id="conversation",
                show_label=False,
                container=False,
                height="50vh",
                min_height=280,
                latex_delimiters=[],
                allow_tags=False,
                buttons=[],
                layout="bubble",
                placeholder=_WELCOME,
            )
            prompt = gr.Textbox(
                elem_id="chat-prompt",
                placeholder="Ask something …",
                show_label=False,
                label="Your question",
                container=False,
                max_lines=8,
                submit_btn=True,
                autofocus=True,
            )
            waiting = queue_line("chat-queue")
            with gr.Row(elem_classes="below-prompt"):
                retry, edit, clear = (
                    gr.Button(label, size="sm", elem_id=name, elem_classes="quiet-button", scale=0, min_width=96)
                    for label, name in (
                        ("Retry", "retry"),
                        ("Edit question", "edit-question"),
                        ("New conversation", "new-conversation"),
                    )
                )
            expected = {name: example.acceptance_length for name, example in examples.items()}
            gallery = prompt_gallery(prompt, expected, "chat-gallery")
        with gr.Column(scale=3, min_width=300):
            panel = drawing("answer")
            panel.open_step(tab.open_step, session, [tree, tabs], **PLUMBING)
            panel.show_answer(tab.show_answer, session, panel, **PLUMBING)
    buttons = {"retry": retry, "edit": edit, "clear": clear}
    _connect(tab, session, controls, conversation, prompt, panel, tree, gallery, buttons, waiting)


def _connect(
    tab: ChatTab,
    session: gr.State,
    controls: list[Component],
    conversation: gr.Chatbot,
    prompt: gr.Textbox,
    panel: gr.HTML,
    tree: gr.HTML,
    gallery: gr.Dataset,
    buttons: Mapping[str, gr.Button],
    waiting: gr.HTML,
) -> None:
    chosen = gallery.click(lambda sample: sample[0], gallery, prompt, **PLUMBING)
    shown = [conversation, panel, prompt]
    run = Call(tab.answer, session, [conversation, panel, tree])
    connect_run(
        prompt,
        starts=(prompt.submit, chosen.then),
        begin=Call(tab.accept, [prompt, session, *controls], shown),
        run=run,
        stop=Call(Session.stop_chat, session, None),
        waiting=waiting,
    )
    connect_start(prompt, buttons["retry"].click, Call(tab.retry, [session, *controls], shown), run, waiting)
    buttons["edit"].click(tab.edit, session, shown, **CHECK)
    buttons["clear"].click(tab.clear, session, [conversation, panel], **PLUMBING)
