"""Named endpoints for scripts: `/generate`, `/chat`, `/compare` and `/trace`. Plain values in, plain JSON data out.

They wait in the same queue as the page, so a script and a visitor never decode at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any

from gradio.events import api

from eagle3_demo.decoding.events import RunStatistics, StepEvent, compared
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.race import start_race
from eagle3_demo.settings import GenerationSettings, generation_settings
from eagle3_demo.ui.controls import limited
from eagle3_demo.ui.events import refuse
from eagle3_demo.ui.examples import Example
from eagle3_demo.ui.session import Exchange, encode_conversation

_COMPARED: tuple[str, ...] = ("autoregressive", "eagle3")


class Endpoints:
    """The functions behind the named endpoints."""

    def __init__(self, engine: DecodingEngine, examples: Mapping[str, Example], most_tokens: int) -> None:
        self._engine, self._examples, self._most_tokens = engine, examples, most_tokens

    def generate(
        self,
        prompt: str,
        method: str = "eagle3",
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Answer one prompt and tell how fast.

        Args:
            prompt: what to answer.
            method: eagle3 or autoregressive.
            max_new_tokens: exact budget of new tokens; the page has a limit, 1024 unless it was set otherwise.
            temperature: 0 is greedy.
            top_p: nucleus mass; 1 switches it off.
            seed: keys the noise of sampling; the same seed gives the same answer with either method.

        Returns:
            text, new_tokens, target_forwards, acceptance_length, tokens_per_second, seconds_prefill, seconds_decode,
            stop_reason, and speculation (active, reason).
        """
        settings = self._settings(
            method=method, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed
        )
        prompt_ids = self._prompt([], prompt)
        return self._figures(settings, RunStatistics.of(self._decode(prompt_ids, settings)))

    def chat(
        self, message: str, history: list[dict[str, str]] | None = None, max_new_tokens: int = 128
    ) -> dict[str, Any]:
        """Answer the next message of a conversation.

        Args:
            message: what the person says now.
            history: earlier messages, oldest first, as role (user or assistant, in turns) and content.
            max_new_tokens: exact budget of new tokens; the page has a limit, 1024 unless it was set otherwise.

        Returns:
            the figures of /generate, and history with the new message and its answer.
        """
        earlier = _exchanges(history or [])
        settings = self._settings(max_new_tokens=max_new_tokens)
        prompt_ids = self._prompt(earlier, message)
        result = self._figures(settings, RunStatistics.of(self._decode(prompt_ids, settings)))
        told = [{"role": "user", "content": message}, {"role": "assistant", "content": result["text"]}]
        return result | {"history": [*(history or []), *told]}

    def compare(
        self, prompt: str, max_new_tokens: int = 128, temperature: float = 0.0, seed: int = 0
    ) -> dict[str, Any]:
        """Answer one prompt plainly and with EAGLE-3, in turns on the same machine.

        Args:
            prompt: what to answer.
            max_new_tokens: exact budget of new tokens; the page has a limit, 1024 unless it was set otherwise.
            temperature: 0 is greedy.
            seed: keys the noise of sampling.

        Returns:
            autoregressive and eagle3 (the figures of /generate), speedup, identical, and first_divergence.
        """
        settings = self._settings(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        sides = {method: settings.model_copy(update={"method": method}) for method in _COMPARED}
        prompt_ids = self._prompt([], prompt)
        events: dict[str, list[StepEvent]] = {method: [] for method in sides}
        with closing(start_race(self._engine, prompt_ids, sides)) as race:
            for method, event in race:
                events[method].append(event)
        runs = {method: RunStatistics.of(some) for method, some in events.items()}
        figures = {method: self._figures(sides[method], run) for method, run in runs.items()}
        return figures | compared(runs["autoregressive"], runs["eagle3"])

    def trace(self, prompt: str, max_new_tokens: int = 64) -> dict[str, Any]:
        """Answer one prompt with EAGLE-3 and return every step: draft tree, verdict, probabilities, times.

        Args:
            prompt: what to answer; or the name of a recorded example, such as code, which is returned as recorded.
            max_new_tokens: exact budget of new tokens; the page has a limit, 1024 unless it was set otherwise.

        Returns:
            the figures of /generate, and steps: one engine event each.
        """
        if prompt in self._examples:
            recorded = self._examples[prompt].comparison.right
            return recorded.statistics.figures(recorded.speculation) | {
                "origin": recorded.origin,
                "steps": [asdict(event) for event in recorded.events],
            }
        settings = self._settings(max_new_tokens=max_new_tokens, explain=True)
        events = self._decode(self._prompt([], prompt), settings)
        return self._figures(settings, RunStatistics.of(events)) | {"steps": [asdict(event) for event in events]}

    def _settings(self, **values: Any) -> GenerationSettings:
        try:
            return limited(generation_settings(**values), self._most_tokens)
        except UserError as error:
            raise refuse(str(error)) from error

    def _prompt(self, earlier: list[Exchange], question: str) -> list[int]:
        try:
            prompt_ids, _ = encode_conversation(self._engine, earlier, question, room=0)
        except UserError as error:
            raise refuse(str(error)) from error
        return prompt_ids

    def _decode(self, prompt_ids: list[int], settings: GenerationSettings) -> list[StepEvent]:
        return list(self._engine.run(prompt_ids, settings))

    def _figures(self, settings: GenerationSettings, statistics: RunStatistics) -> dict[str, Any]:
        return statistics.figures(self._engine.speculation(settings))


def _exchanges(history: list[dict[str, str]]) -> list[Exchange]:
    """Messages as questions with their answers."""
    roles = [message.get("role") for message in history]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        raise refuse("history must be messages of user and assistant in turns, oldest first")
    contents = [str(message.get("content", "")) for message in history]
    return [Exchange(question, answer) for question, answer in zip(contents[::2], contents[1::2], strict=True)]


def publish(engine: DecodingEngine, examples: Mapping[str, Example], most_tokens: int) -> None:
    """Adds the endpoints to the page that is being built."""
    endpoints = Endpoints(engine, examples, most_tokens)
    for function in (endpoints.generate, endpoints.chat, endpoints.compare, endpoints.trace):
        api(function, api_name=function.__name__, concurrency_id="model", concurrency_limit=1)
