"""Our own prompts, from text that is easy to guess to text that is hard: where drafting pays, and where it does not."""

from __future__ import annotations

from typing import NamedTuple


class Prompt(NamedTuple):
    """A prompt, the name of its recorded run and the word on its button."""

    name: str
    label: str
    text: str


GALLERY: tuple[Prompt, ...] = (
    Prompt("count", "Count", "Count from 1 to 30, one number per line."),
    Prompt(
        "code",
        "Code",
        "Write a Python function that returns the first n Fibonacci numbers, with a short docstring.",
    ),
    Prompt("list", "List", "List ten fruits with their usual colour, one per line."),
    Prompt("explain", "Explain", "Explain in a few sentences why the sky is blue."),
    Prompt("letter", "Letter", "Write a short, polite letter to a landlord about a dripping tap."),
    Prompt("story", "Story", "Tell a short story about a lighthouse keeper who finds a strange map."),
)
