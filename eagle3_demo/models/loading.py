"""transformers' own progress bar, which would mix with ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging


@contextmanager
def without_weights_bar() -> Iterator[None]:
    """Switches transformers' bar for loading weights off; the hub's bars for downloads stay as they are."""
    weights, downloads = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if weights:
            logging.enable_progress_bar()
        if not downloads:
            disable_progress_bars()
