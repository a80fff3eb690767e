"""The options that commands share, and how they become settings and an engine."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from eagle3_demo.cli.console import progress_shown
from eagle3_demo.engine import DecodingEngine, load_engine
from eagle3_demo.errors import UserError
from eagle3_demo.presets import find_preset
from eagle3_demo.settings import GenerationSettings, Method, SamplingSettings, SettingError, generation_settings

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

RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "preset": (PresetName, None),
    "target": (TargetId, None),
    "head": (HeadPath, None),
    "device": (Device, "auto"),
    "dtype": (Dtype, "auto"),
    "max_new_tokens": (MaxNewTokens, DEFAULTS.max_new_tokens),
    "temperature": (Temperature, DEFAULTS.sampling.temperature),
    "top_p": (TopP, DEFAULTS.sampling.top_p),
    "top_k": (TopK, DEFAULTS.sampling.top_k),
    "seed": (Seed, DEFAULTS.sampling.seed),
    "depth": (Depth, DEFAULTS.tree.depth),
    "tree_top_k": (TreeTopK, DEFAULTS.tree.top_k),
    "nodes": (Nodes, DEFAULTS.tree.nodes),
    "stop": (Stop, None),
}
"""What every command that decodes can be told, with the defaults."""


def with_run_options(*left_out: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command `RUN_OPTIONS` after its own; it reads them through `request` and `requested_engine`.

    Args:
        left_out: options that the command does not have.
        defaults: other defaults than usual.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(**{name: values[name] for name in own})

        kind = inspect.Parameter.KEYWORD_ONLY
        shared = [
            inspect.Parameter(name, kind, annotation=option, default=defaults.get(name, usual))
            for name, (option, usual) in RUN_OPTIONS.items()
            if name not in left_out
        ]
        parameters = [*(parameter.replace(kind=kind) for parameter in own.values()), *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def request(context: typer.Context) -> GenerationSettings:
    """Settings from those options of the running command that are settings.

    Raises:
        typer.BadParameter: a value is out of range; the message names the option.
    """
    values = {name: value for name, value in context.params.items() if name in SETTINGS}
    values["stop"] = tuple(values.get("stop") or ())
    try:
        return generation_settings(**values)
    except SettingError as error:
        raise typer.BadParameter(error.problem, param_hint=[f"--{error.name.replace('_', '-')}"]) from error


def check_prompt(prompt: str) -> str:
    """The prompt as it is, when there is something in it.

    Raises:
        typer.BadParameter: it is blank, or its bytes were no text in this system's encoding.
    """
    if not prompt.strip():
        raise typer.BadParameter("it is empty; type something to answer", param_hint=["PROMPT"])
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise typer.BadParameter("it is not text in this system's encoding", param_hint=["PROMPT"]) from error
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
        raise typer.BadParameter("it names a target already; leave --target out", param_hint=["--preset"])
    if chosen["preset"]:
        try:
            find_preset(chosen["preset"])
        except UserError as error:
            raise typer.BadParameter(str(error), param_hint=["--preset"]) from error
    with progress_shown() as progress:
        return load_engine(**chosen, progress=progress)
