"""Our own prompts, from text that is easy to guess to text that is hard: where drafting pays, and where it does not."""

from __future__ import annotations

from typing import NamedTuple

import gradio as gr


class Prompt(NamedTuple):
    """A prompt and the few words on its button."""

    label: str
    text: str


GALLERY: tuple[Prompt, ...] = (
    Prompt("Count · easiest", "Count from 1 to 30, one number per line."),
    Prompt("Code", "Write a Python function that returns the first n Fibonacci numbers, with a short docstring."),
    Prompt("List", "List ten fruits with their usual colour, one per line."),
    Prompt("Explain", "Explain in a few sentences why the sky is blue."),
    Prompt("Letter", "Write a short, polite letter to a landlord about a dripping tap."),
    Prompt("Story · hardest", "Tell a short story about a lighthouse keeper who finds a strange map."),
)


def prompt_gallery(prompt: gr.Textbox) -> gr.Dataset:
    """One small button for each prompt; choosing one gives `[text]`."""
    return gr.Dataset(
        components=[prompt],
        samples=[[example.text] for example in GALLERY],
        sample_labels=[example.label for example in GALLERY],
        show_label=False,
        container=False,
        elem_classes="gallery-row",
    )
