"""The look: Gradio's plain theme with quiet colours, system fonts and our own style sheets."""

from __future__ import annotations

import gradio as gr


def page_theme() -> gr.themes.Base:
    """Blue accent, slate neutrals, fonts that every system has (nothing is loaded from elsewhere)."""
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
        radius_size="md",
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        block_border_width="0px",
        block_shadow="none",
        body_text_color_subdued="*neutral_500",
        block_info_text_color="*neutral_500",
        block_label_text_color="*neutral_600",
        block_title_text_color="*neutral_700",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
    )
