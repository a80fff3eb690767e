"""How long work tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]
"""Called with a fraction from 0 to 1 and what is being done."""

ReadingCallback = Callable[[int, int], None]
"""Called while a long prompt is prefilled: its tokens read so far, and all of them."""
