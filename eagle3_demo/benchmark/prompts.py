"""The prompts of a benchmark: a JSONL file with `suite`, `id` and `turns` or `prompt` on each line.

Only the first turn of a conversation is asked, so that every method gets the same prompt whatever it answers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from eagle3_demo.errors import UserError


@dataclass(frozen=True, slots=True)
class BenchmarkPrompt:
    """One prompt; `id` is the line number where the file names none, `suite` is `all` where it names none."""

    suite: str
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts read from a file, and what identifies it in a report."""

    name: str
    sha256: str
    prompts: tuple[BenchmarkPrompt, ...]


def read_prompt_file(path: Path, limit: int | None = None) -> PromptFile:
    """Reads a JSONL file.

    Args:
        limit: prompts in total, taken in turn from the suites so that each is represented alike.

    Raises:
        UserError: no such file, not UTF-8, or a line that is no prompt; the message names the line.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").split("\n")
    except OSError as error:
        raise UserError(f"the prompt file {path} cannot be read ({error.strerror}); give a JSONL file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the prompt file {path} is not UTF-8 text ({error.reason}); give a JSONL file") from error
    prompts = [_prompt(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UserError(f"the prompt file {path} is empty; each line needs a `prompt` or `turns` field")
    return PromptFile(path.name, hashlib.sha256(content).hexdigest(), tuple(balanced(prompts, limit)))


def balanced(prompts: list[BenchmarkPrompt], limit: int | None) -> list[BenchmarkPrompt]:
    """The first `limit` prompts when the suites take turns: one of each, then the second of each, …."""
    suites: dict[str, list[BenchmarkPrompt]] = {}
    for prompt in prompts:
        suites.setdefault(prompt.suite, []).append(prompt)
    longest = max(map(len, suites.values()))
    in_turn = [suite[rank] for rank in range(longest) for suite in suites.values() if rank < len(suite)]
    return in_turn[:limit]


def _prompt(line: str, path: Path, number: int) -> BenchmarkPrompt:
    try:
        record = json.loads(line)
        text = record["prompt"] if "prompt" in record else record["turns"][0]
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{path} line {number} is no JSON object with a `prompt` or `turns` field") from error
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{path} line {number}: the prompt is empty or no text")
    return BenchmarkPrompt(str(record.get("suite", "all")), str(record.get("id", number)), text)
