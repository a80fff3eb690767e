"""The settings beside the page. Sliders guide the hand; what counts is the check in `generation_settings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from eagle3_demo.background_engine import BackgroundEngine
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.settings import (
    METHOD_NAMES,
    GenerationSettings,
    SamplingSettings,
    TreeSettings,
    generation_settings,
)

NAMES = ("method", "temperature", "top_p", "top_k", "max_new_tokens", "seed", "depth", "tree_top_k", "nodes")
"""Settings in the order of the controls."""


NODE_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 60, 96, 128)
MOST_TOKENS = 1024
"""New tokens that a visitor may ask for, unless the page is built with another limit."""


def build_controls(engine: DecodingEngine, most_tokens: int = MOST_TOKENS) -> list[Component]:
    """Draws the settings; the components come in the order of `NAMES`."""
    sampling, tree = SamplingSettings(), TreeSettings()
    method = gr.Radio(
        _methods(engine),
        value="eagle3",
        label="Decoding method",
        info="For Chat; a race chooses its own two.",
    )
    max_new_tokens = gr.Slider(
        1,
        most_tokens,
        value=min(192, most_tokens),
        step=1,
        label="Answer limit",
        info="In tokens.",
        elem_id="answer-limit",
    )
    with gr.Accordion("Sampling", open=False, elem_classes="quiet"):
        temperature = gr.Slider(
            0, 2, value=sampling.temperature, step=0.05, label="Temperature", info="0 always takes the likeliest token."
        )
        top_p = gr.Slider(
            0.05, 1, value=sampling.top_p, step=0.05, label="Top-p", info="Keep the likeliest tokens up to this mass."
        )
        top_k = gr.Slider(
            0, 200, value=sampling.top_k, step=1, label="Top-k", info="Keep this many likeliest tokens; 0 keeps all."
        )
        seed = gr.Number(sampling.seed, precision=0, label="Seed", info="The same seed gives the same answer.")
    with gr.Accordion("Draft tree", open=False, elem_classes="quiet"):
        depth = gr.Slider(1, 16, value=tree.depth, step=1, label="Depth", info="How many tokens ahead to guess.")
        tree_top_k = gr.Slider(
            1, 32, value=tree.top_k, step=1, label="Guesses per place", info="Likeliest next tokens kept at each node."
        )
        nodes = gr.Dropdown(
            ["auto", *map(str, NODE_COUNTS)],
            value=str(tree.nodes),
            allow_custom_value=True,
            label="Nodes",
            info="Tokens the target checks in one forward pass; auto takes what pays, round by round.",
            elem_id="nodes",
        )
    return [method, temperature, top_p, top_k, max_new_tokens, seed, depth, tree_top_k, nodes]


def _methods(engine: DecodingEngine) -> list[tuple[str, str]]:
    """Names and values of the methods to choose from: EAGLE-2 only where a head for it is loaded already."""
    if isinstance(engine, BackgroundEngine) and not engine.state.ready:
        return [(METHOD_NAMES[method], method) for method in ("eagle3", "autoregressive")]
    contrast = engine.speculation(generation_settings(method="eagle2")).active
    return [(name, method) for method, name in METHOD_NAMES.items() if method != "eagle2" or contrast]


def read_controls(values: Sequence[Any], most_tokens: int = MOST_TOKENS) -> GenerationSettings:
    """The settings that the controls' values mean.

    Raises:
        UserError: a value is not valid, or more tokens than allowed; the message names it.
    """
    return limited(generation_settings(**dict(zip(NAMES, values, strict=True))), most_tokens)


def limited(settings: GenerationSettings, most_tokens: int) -> GenerationSettings:
    """The settings, when they keep within the page's limit.

    Raises:
        UserError: they do not.
    """
    if settings.max_new_tokens > most_tokens:
        raise UserError(f"max_new_tokens = {settings.max_new_tokens} is more than {most_tokens}, this page's limit")
    return settings
