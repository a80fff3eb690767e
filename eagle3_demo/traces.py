"""Recorded races: one prompt decoded by two methods, every engine event kept, in a small compressed JSON file.

The page plays these before any model is loaded; a trace says on which model and machine, and when, it was recorded.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from eagle3_demo.decoding.events import RunStatistics, Speculation, StepEvent
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.environment import processor_count, processor_name, versions
from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.presets import REPOSITORY
from eagle3_demo.race import alternate
from eagle3_demo.settings import GenerationSettings

TRACES = REPOSITORY / "assets" / "traces"
SUFFIX = ".json.gz"
_FORMAT = 1
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One side of a race: how it was decoded, and every step."""

    settings: GenerationSettings
    speculation: Speculation
    events: tuple[StepEvent, ...]


@dataclass(frozen=True, slots=True)
class RecordedOn:
    """Where and when a trace was made; shown beside every figure that comes from it."""

    target: str
    head: str | None
    device: str
    dtype: str
    machine: str
    date: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded race. `left` is the baseline, `name` the file's name without its suffix."""

    name: str
    label: str
    prompt: str
    recorded: RecordedOn
    left: RecordedRun
    right: RecordedRun
    format: int = _FORMAT


_ADAPTER = TypeAdapter(Trace)


def recorded_here(engine: DecodingEngine) -> RecordedOn:
    """What a trace that is made now with this engine says about itself."""
    cores = processor_count()
    return RecordedOn(
        target=engine.target_name,
        head=engine.head_name,
        device=engine.device,
        dtype=engine.dtype,
        machine=f"{processor_name()}, {cores} core{'' if cores == 1 else 's'}",
        date=date.today().isoformat(),
        versions=versions(),
    )


def record(engine: DecodingEngine, name: str, label: str, prompt: str, settings: GenerationSettings) -> Trace:
    """Decodes a prompt plainly and with EAGLE-3, in turns, and keeps everything.

    Args:
        settings: of the EAGLE-3 side; the plain side takes its sampling and budget.

    Raises:
        UserError: the prompt does not fit, or speculation is not active and there is nothing to show.
    """
    fast = settings.model_copy(update={"method": "eagle3", "explain": True})
    sides = {"left": fast.model_copy(update={"method": "autoregressive"}), "right": fast}
    speculation = {side: engine.speculation(one) for side, one in sides.items()}
    if not speculation["right"].active:
        raise UserError(f"nothing to record: {speculation['right'].reason}")
    prompt_ids = engine.encode([{"role": "user", "content": prompt}])
    events: dict[str, list[StepEvent]] = {side: [] for side in sides}
    for side, event in alternate({side: engine.run(prompt_ids, one) for side, one in sides.items()}):
        events[side].append(event)
    runs = {side: RecordedRun(one, speculation[side], tuple(events[side])) for side, one in sides.items()}
    return Trace(name, label, prompt, recorded_here(engine), runs["left"], runs["right"])


def save_trace(trace: Trace, folder: Path) -> Path:
    """Writes `<name>.json.gz`; the same trace always gives the same bytes."""
    content = json.dumps(_rounded(_ADAPTER.dump_python(trace, mode="json")), separators=(",", ":"))
    packed = gzip.compress(content.encode("utf-8"), mtime=0)
    path = folder / f"{trace.name}{SUFFIX}"
    write_atomically(path, lambda temporary: temporary.write_bytes(packed))
    return path


def load_trace(path: Path) -> Trace:
    """Reads a trace.

    Raises:
        UserError: the file is missing, damaged, or of another format.
    """
    try:
        trace = _ADAPTER.validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValidationError) as error:
        raise UserError(
            f"the recorded run {path} cannot be read ({type(error).__name__}); "
            "record it again with `python -m eagle3_demo record-traces`"
        ) from error
    if trace.format != _FORMAT:
        raise UserError(f"the recorded run {path} has format {trace.format}, not {_FORMAT}; record it again")
    return trace


def load_traces(folder: Path = TRACES) -> list[Trace]:
    """All traces of a folder by acceptance length, easiest first; none where there is no folder."""
    traces = [load_trace(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    return sorted(traces, key=lambda trace: -RunStatistics.of(trace.right.events).acceptance_length)


def _rounded(value: Any) -> Any:
    """Six digits are more than a clock or a probability is good for, and make the file a third smaller."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
