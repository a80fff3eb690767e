"""Prompt lists: what the user says, turn by turn, in every conversation that a corpus is made of."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

from eagle3_demo.errors import UserError

Turns = tuple[str, ...]
"""What the user says in one conversation, one text a turn."""

FOLLOW_UPS = (
    "Can you explain that in more detail?",
    "Give me an example.",
    "Say the same in one sentence.",
    "Why is that?",
    "Now put it so that a child understands it.",
    "What should I watch out for?",
    "Rewrite your answer as a list.",
    "Is there another way to see it?",
    "Thanks. What would you do next?",
    "Are you sure? Please check it again.",
)


def read_prompts(paths: list[Path]) -> list[Turns]:
    """Conversations from prompt files: JSONL with `prompt` or `turns`, or plain text with a prompt a line.

    A conversation whose opening was seen already is left out, so that nothing held out is trained on.

    Raises:
        UserError: a file is missing, empty, not UTF-8, or has a line that is neither.
    """
    conversations: dict[str, Turns] = {}
    for path in paths:
        for number, line in enumerate(_text_of(path).split("\n"), 1):
            if not line.strip():
                continue
            turns = _turns_of(line, path, number) if path.suffix == ".jsonl" else (line.strip(),)
            if turns[0].strip():
                conversations.setdefault(turns[0], turns)
    if not conversations:
        raise UserError(f"no prompts in {', '.join(map(str, paths))}; each line needs a `prompt` or `turns` field")
    return list(conversations.values())


def with_follow_ups(conversations: list[Turns], share: float, seed: int) -> list[Turns]:
    """Lets a share of the single-turn conversations go on with a sentence that fits any answer.

    Which ones, and with what, depends on the seed and the number of the conversation alone.
    """
    return [
        (*turns, random.Random(f"{seed}:follow-up:{number}").choice(FOLLOW_UPS))
        if len(turns) == 1 and random.Random(f"{seed}:goes-on:{number}").random() < share
        else turns
        for number, turns in enumerate(conversations)
    ]


def prompts_digest(conversations: list[Turns]) -> str:
    """A hash of a prompt list; a list of single turns hashes as those texts alone."""
    return hashlib.sha256("\0".join("\1".join(turns) for turns in conversations).encode()).hexdigest()


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"prompt file {path} cannot be read ({error.strerror}); give a JSONL or text file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"prompt file {path} is not UTF-8 text; give a JSONL or text file") from error


def _turns_of(line: str, path: Path, number: int) -> Turns:
    try:
        record = json.loads(line)
        turns = [record["prompt"]] if "prompt" in record else record["turns"]
        if not isinstance(turns, list) or not turns:
            raise TypeError
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} line {number} is no JSON object with `prompt` or `turns`") from error
    for turn in turns:
        if not isinstance(turn, str):
            raise UserError(f"{path} line {number}: the prompt is a {type(turn).__name__}, not text")
    if any(not turn.strip() for turn in turns[1:]):
        raise UserError(f"{path} line {number}: a later turn is empty; leave it out")
    return tuple(turns)
