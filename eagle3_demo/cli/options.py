"""The options that commands share, and how they become settings and an engine."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from eagle3_demo.cli.console import progress_shown
from eagle3_demo.engine import DecodingEngine, load_engine
from eagle3_demo.errors import UserError
from eagle3_demo.presets import find_preset
from eagle3_demo.settings import GenerationSettings, Method, SamplingSettings, generation_settings

DEFAULTS = GenerationSettings()
SETTINGS = {*GenerationSettings.model_fields, *SamplingSettings.model_fields, "depth", "tree_top_k", "nodes"}

DtypeName = Literal["auto", "float32", "float16", "bfloat16", "packed16", "gguf"]


def _known_device(device: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", device):
        raise typer.BadParameter(f"{device!r} is not one of auto, cpu, cuda, cuda:N, mps")
    return device


Prompt = Annotated[str, typer.Argument(help="What to answer.", show_default=False)]
MethodOption = Annotated[Method, typer.Option(help="How to decode.")]
PresetName = Annotated[str | None, typer.Option("--preset", help="A named pair of target and head; see doctor.")]
TargetId = Annotated[str | None, typer.Option("--target", help="Hub id or folder of another target.")]
HeadPath = Annotated[str | None, typer.Option("--head", help="Hub id or folder of another draft head.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", callback=_known_device)]
Dtype = Annotated[DtypeName, typer.Option(help="auto is gguf or packed16 on a CPU and bfloat16 on CUDA.")]
MaxNewTokens = Annotated[int, typer.Option(help="Exact budget of new tokens.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Nucleus mass; 1 switches it off.")]
TopK = Annotated[int, typer.Option(help="Tokens kept for sampling; 0 switches it off.")]
Seed = Annotated[int, typer.Option(help="Keys the noise of sampling.")]
Depth = Annotated[int, typer.Option(help="Levels of the draft tree.")]
TreeTopK = Annotated[int, typer.Option(help="Children of each expanded node of the draft tree.")]
Nodes = Annotated[int, typer.Option(help="Rows the target verifies at once, the root included.")]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends the answer; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def request(context: typer.Context) -> GenerationSettings:
    """Settings from those options of the running command that are settings.

    Raises:
        typer.BadParameter: a value is out of range; the message names the option.
    """
    values = {name: value for name, value in context.params.items() if name in SETTINGS}
    values["stop"] = tuple(values.get("stop") or ())
    try:
        return generation_settings(**values)
    except UserError as error:
        raise typer.BadParameter(str(error), param_hint=_option_of(error)) from error


def check_prompt(prompt: str) -> str:
    """The prompt as it is, when there is something in it.

    Raises:
        typer.BadParameter: it is blank, or its bytes were no text in this system's encoding.
    """
    if not prompt.strip():
        raise typer.BadParameter("it is empty; type something to answer", param_hint="PROMPT")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise typer.BadParameter("it is not text in this system's encoding", param_hint="PROMPT") from error
    return prompt


def requested_engine(context: typer.Context) -> DecodingEngine:
    """Loads the engine that the running command's options ask for, with progress on stderr.

    Raises:
        typer.BadParameter: options that exclude each other, or no such preset.
        UserError: a file or model is missing or damaged.
    """
    names = ("preset", "target", "head", "device", "dtype")
    chosen = {name: context.params[name] for name in names}
    if chosen["preset"] and chosen["target"]:
        raise typer.BadParameter("it names a target already; leave --target out", param_hint="--preset")
    if chosen["preset"]:
        try:
            find_preset(chosen["preset"])
        except UserError as error:
            raise typer.BadParameter(str(error), param_hint="--preset") from error
    with progress_shown() as progress:
        return load_engine(**chosen, progress=progress)


def _option_of(error: UserError) -> str:
    """The option that a refused setting came from."""
    cause = error.__cause__
    location = cause.errors()[0]["loc"] if isinstance(cause, ValidationError) else ()
    if location[:1] == ("tree",) and location[1:] == ("top_k",):
        return "--tree-top-k"
    names = [str(part) for part in location if part not in ("sampling", "tree") and isinstance(part, str)]
    return "--" + names[0].replace("_", "-") if names else "options"
