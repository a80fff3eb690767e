"""When an answer ends, and its text while it grows.

Tokens are looked at one by one, also when a step brings many: the earliest of end token, stop string and budget ends
the answer, and nothing after it is emitted. Text is released only when it can no longer change: not inside a
character, and not while it may turn out to be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eagle3_demo.decoding.events import StopReason, TokenRecord


@dataclass(frozen=True, slots=True)
class Fed:
    """What became of a step's tokens.

    Attributes:
        tokens: the emitted ones. Their texts join to the answer's text; where an earlier step's token began a stop
            string, the joined texts run over the answer's end by that beginning.
        text: the answer's text that is now certain; may lag behind `tokens`.
        stop_reason: set when the answer has ended.
    """

    tokens: tuple[TokenRecord, ...]
    text: str
    stop_reason: StopReason | None


class Detokenizer:
    """Text of a growing list of tokens; the pieces join to the decoded whole.

    Each piece is decoded together with the piece before it, so that spaces between words survive (faults B29).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0
        self._read = 0

    def push(self, token: int) -> str:
        """Takes one token; returns the text it completes, which is empty inside a character."""
        self._ids.append(token)
        text = self._unread()
        return "" if text.endswith("\ufffd") else self._advance(text)

    def flush(self) -> str:
        """The text of what is left, complete or not."""
        return self._advance(self._unread())

    def _unread(self) -> str:
        known = self._decode(self._ids[self._context : self._read])
        return self._decode(self._ids[self._context :])[len(known) :]

    def _advance(self, text: str) -> str:
        if text:
            self._context, self._read = self._read, len(self._ids)
        return text

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class StopWatcher:
    """Cuts a request's tokens at its end and turns them into text.

    Args:
        tokenizer: the target's.
        end_tokens: ids that end the answer; they count as emitted and have no text.
        stop_strings: the answer's text ends right before the first of them.
        max_new_tokens: exact budget, end token included. A character that it cuts in half is not shown.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: Collection[int],
        stop_strings: Sequence[str],
        max_new_tokens: int,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._end_tokens, self._stop_strings = end_tokens, tuple(stop_strings)
        self.remaining = max_new_tokens
        self._held = ""

    def feed(self, candidates: Sequence[tuple[int, bool]]) -> Fed:
        """Takes the tokens of one step.

        Args:
            candidates: (token id, whether it was drafted) in order.
        """
        records: list[TokenRecord] = []
        released = ""
        reason: StopReason | None = None
        for token, drafted in candidates:
            self.remaining -= 1
            ends = token in self._end_tokens
            added = "" if ends else self._detokenizer.push(token)
            if ends:
                added += self._detokenizer.flush()
            certain, own, stopped = self._hold(added)
            released += certain
            records.append(TokenRecord(token, "" if ends else own, drafted))
            reason = "end_token" if ends else "stop_string" if stopped else None
            if not self.remaining:
                reason = "length"
            if reason:
                released += self._release()
                break
        return Fed(tuple(records), released, reason)

    def finish(self) -> str:
        """Releases the text still held back, for an answer that somebody ends from outside; half a character is not."""
        return self._release()

    def _hold(self, added: str) -> tuple[str, str, bool]:
        """Puts new text behind what is held back.

        Returns:
            The text that is now certain; the part of `added` that belongs to the answer; whether a stop string ends it.
        """
        text = self._held + added
        starts = [start for stop in self._stop_strings if (start := text.find(stop)) >= 0]
        if starts:
            own = added[: max(0, min(starts) - len(self._held))]
            self._held = ""
            return text[: min(starts)], own, True
        certain = len(text) - self._beginning(text)
        self._held = text[certain:]
        return text[:certain], added, False

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max(map(len, self._stop_strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop_strings):
                return length
        return 0

    def _release(self) -> str:
        held, self._held = self._held, ""
        return held
