"""The prompts on buttons. The acceptance length beside a prompt is that of its recorded run."""

from __future__ import annotations

from collections.abc import Mapping

import gradio as gr

from eagle3_demo.ui.prompts import GALLERY


def prompt_gallery(prompt: gr.Textbox, expected: Mapping[str, float], elem_id: str) -> gr.Dataset:
    """One small button for each prompt; choosing one gives `[text]`.

    Args:
        prompt: the box the prompts are for.
        expected: acceptance length of the recorded run by prompt name.
    """
    return gr.Dataset(
        components=[prompt],
        samples=[[example.text] for example in GALLERY],
        sample_labels=[
            f"{example.label} · {expected[example.name]:.1f}" if example.name in expected else example.label
            for example in GALLERY
        ],
        show_label=False,
        container=False,
        elem_id=elem_id,
        elem_classes="gallery-row",
    )
