"""Writing to terminals, files and pipes of any encoding without ever failing over a character."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from eagle3_demo.progress import ProgressCallback


def make_streams_forgiving() -> None:
    """A character that the console's encoding lacks is written as an escape (faults B48)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def close_quietly(stream: TextIO) -> None:
    """After the reader has gone: sends the rest nowhere, so that the interpreter's own flush at exit is silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on stdout, in ASCII: it stays valid JSON in every encoding."""
    print(json.dumps(value, indent=2))


def output() -> Console:
    """Rich on stdout."""
    return Console(highlight=False)


def note(message: str) -> None:
    """A line for the person, on stderr, so that stdout holds the answer alone."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def progress_shown() -> Iterator[ProgressCallback]:
    """A callback whose progress is a bar on a terminal, and now and then a line elsewhere; always on stderr."""
    if not sys.stderr.isatty():
        yield _line_reporter()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=1.0)

    def report(fraction: float, doing: str) -> None:
        bar.start()
        bar.update(task, completed=fraction, description=doing)

    try:
        yield report
    finally:
        bar.stop()


def _line_reporter() -> ProgressCallback:
    told: set[tuple[str, int]] = set()

    def report(fraction: float, doing: str) -> None:
        key = (re.sub(r"\d+", "", doing), int(fraction * 10))
        if key not in told:
            told.add(key)
            note(f"{doing} …")

    return report
