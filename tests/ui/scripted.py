"""A scripted engine: keeps the contract of `DecodingEngine` with hand-made steps, so the page can be tried in no time.

The answer repeats the question and says which turn it is, so every visitor can recognise their own.
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence

from eagle3_demo.decoding.events import NodeStatus, Speculation, StepEvent, StopReason, TokenRecord, TreeRecord
from eagle3_demo.errors import UserError
from eagle3_demo.progress import ReadingCallback
from eagle3_demo.settings import GenerationSettings

ACCEPTED_PER_STEP = (2, 0, 1, 3)
PREFILL_SLICE = 512


class ScriptedEngine:
    """Answers at once, or at `seconds_per_step`; can be told to fail or to differ between methods."""

    target_name = "Scripted target"
    head_name: str | None = "Scripted head"
    device = "none"
    dtype = "text"

    def __init__(
        self,
        seconds_per_step: float = 0.0,
        fail_at_step: int | None = None,
        differ: bool = False,
        max_context: int = 4000,
    ) -> None:
        self.seconds_per_step = seconds_per_step
        self.fail_at_step = fail_at_step
        self.differ = differ
        self.max_context = max_context
        self.steps_taken = 0
        self.open_runs = 0

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The number of turns, then the last question as code points; each earlier character takes up context."""
        length = sum(len(message["content"]) for message in messages) + 1
        if length > self.max_context:
            raise UserError(f"the conversation has {length} tokens, the context holds {self.max_context}; shorten it")
        return [len(messages), *map(ord, messages[-1]["content"])]

    def speculation(self, settings: GenerationSettings) -> Speculation:
        """On for eagle3."""
        if settings.method == "eagle3":
            return Speculation(True, f"the draft head guesses trees of {settings.tree.nodes} nodes")
        return Speculation(False, "plain decoding was chosen")

    def answer(self, prompt_ids: Sequence[int]) -> str:
        """What this engine answers."""
        turn, question = (prompt_ids[0] + 1) // 2, "".join(map(chr, prompt_ids[1:]))
        return f"Answer {turn}. You wrote: {question}\n\nOne, two, three, four, five, six, seven, eight, nine, ten."

    def run(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
        reading: ReadingCallback | None = None,
    ) -> Generator[StepEvent, None, None]:
        """Emits the answer in the scripted rhythm."""
        words = re.findall(r"\s*\S+|\s+$", self.answer(prompt_ids))[: settings.max_new_tokens]
        if self.differ and settings.method == "eagle3":
            words[5] = " other"
        self.open_runs += 1
        try:
            if reading and len(prompt_ids) > PREFILL_SLICE:
                for read in range(0, len(prompt_ids), PREFILL_SLICE):
                    reading(read, len(prompt_ids))
                    time.sleep(self.seconds_per_step)
            yield from self._steps(words, settings, cancelled)
        finally:
            self.open_runs -= 1

    def _steps(
        self, words: list[str], settings: GenerationSettings, cancelled: Callable[[], bool]
    ) -> Iterator[StepEvent]:
        fast = settings.method == "eagle3"
        rhythm = itertools.chain([0], itertools.cycle(ACCEPTED_PER_STEP if fast else [0]))
        start = 0
        for index, accepted in enumerate(rhythm):
            if index == self.fail_at_step:
                raise RuntimeError("the scripted engine was told to fail")
            time.sleep(self.seconds_per_step)
            self.steps_taken += 1
            end = min(start + accepted + 1, len(words))
            reason: StopReason | None = "length" if end == len(words) else None
            reason = "cancelled" if cancelled() else reason
            yield scripted_step(index, words, start, end, drafts=fast and index > 0, reason=reason)
            start = end
            if reason:
                return


def scripted_step(
    index: int, words: Sequence[str], start: int, end: int, drafts: bool, reason: StopReason | None
) -> StepEvent:
    """One step that emits `words[start:end]`; a drafting step accepts all but the last."""
    accepted = end - start - 1
    parents, texts, statuses, path = [-1], [words[start - 1] if start else "<prompt>"], ["root"], []
    parent = 0
    for depth in range(accepted + 2 if drafts else 0):
        reached = depth <= accepted
        agreed = depth < accepted
        for text, status in (
            (words[start + depth] if agreed else " maybe", "accepted" if agreed else "rejected"),
            (" wrong", "rejected"),
        ):
            parents.append(parent)
            texts.append(text)
            statuses.append(status if reached else "unreached")
        if agreed:
            path.append(len(parents) - 2)
        parent = len(parents) - 2
    tree = TreeRecord(
        tokens=tuple(map(hash_token, texts)),
        texts=tuple(texts),
        parents=tuple(parents),
        log_probabilities=(0.0, *(math.log(0.61 if node % 2 else 0.2) for node in range(1, len(parents)))),
        statuses=tuple(_status(status) for status in statuses),
        path=tuple(path),
        target_token=hash_token(words[end - 1]),
        target_text=words[end - 1],
    )
    tokens = tuple(
        TokenRecord(hash_token(word), word, drafted=drafts and place < accepted)
        for place, word in enumerate(words[start:end])
    )
    return StepEvent(
        index=index,
        tree=tree,
        tokens=tokens,
        text="".join(words[start:end]),
        seconds_draft=0.004 if drafts else 0.0,
        seconds_verify=0.02,
        seconds_commit=0.001,
        target_cache_length=start,
        draft_cache_length=start if drafts else 0,
        stop_reason=reason,
    )


def hash_token(text: str) -> int:
    """A stable made-up token id."""
    return sum(ord(character) * 31**place for place, character in enumerate(text)) % 50_000


def _status(name: str) -> NodeStatus:
    statuses: dict[str, NodeStatus] = {
        "root": "root",
        "accepted": "accepted",
        "rejected": "rejected",
        "unreached": "unreached",
    }
    return statuses[name]
