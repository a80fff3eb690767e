"""Every knob, typed and range-checked once, for page, command line and API alike."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3_demo.errors import UserError

Method = Literal["eagle3", "eagle2", "autoregressive"]
METHODS: tuple[Method, ...] = ("eagle3", "eagle2", "autoregressive")
SPECULATIVE_METHODS: tuple[Method, ...] = ("eagle3", "eagle2")
METHOD_NAMES: dict[Method, str] = {"eagle3": "EAGLE-3", "eagle2": "EAGLE-2", "autoregressive": "Plain decoding"}
"""The methods as people read them."""


class SettingError(UserError):
    """A value that a setting cannot have.

    Attributes:
        name: the setting, as `generation_settings` takes it.
        problem: the value and what is wrong with it, without the name.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} = {problem}")
        self.name, self.problem = name, problem


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SamplingSettings(_Settings):
    """How the next token is drawn; shared by plain decoding and speculation.

    Attributes:
        temperature: 0 is greedy; values below 1e-5 count as 0.
        top_p: nucleus mass; 1 switches it off.
        top_k: tokens kept; 0 switches it off.
        seed: keys the noise of a request, together with the absolute position.
    """

    temperature: Annotated[float, Field(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken: one threshold for draft, verification and baseline (faults B14)."""
        return self.temperature < 1e-5


class TreeSettings(_Settings):
    """The shape of a draft tree.

    Attributes:
        depth: levels drafted below the root; with `nodes = "auto"` the most levels.
        top_k: children kept for each expanded node, and nodes expanded on each level.
        nodes: rows the target verifies at once, the root included (SGLang's `num_draft_tokens`). `auto` chooses levels
            and nodes by what they cost and bring, round by round; where nothing pays, it decodes plainly for a while.
        spoiled: share of the guesses that is replaced by wrong tokens, to see what a worse head does.
    """

    depth: Annotated[int, Field(ge=1, le=16)] = 4
    top_k: Annotated[int, Field(ge=1, le=32)] = 3
    nodes: Annotated[int, Field(ge=2, le=128)] | Literal["auto"] = "auto"
    spoiled: Annotated[float, Field(ge=0, le=1)] = 0.0


class GenerationSettings(_Settings):
    """One request.

    Attributes:
        method: how to decode.
        max_new_tokens: exact budget, end-of-turn token included.
        stop: strings that end the answer; the answer ends right before the first.
        explain: whether events also tell what the target thought of each drafted token; costs no measured time.
    """

    method: Method = "eagle3"
    max_new_tokens: Annotated[int, Field(ge=1, le=8192)] = 256
    sampling: SamplingSettings = SamplingSettings()
    tree: TreeSettings = TreeSettings()
    stop: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    explain: bool = False


def generation_settings(**values: Any) -> GenerationSettings:
    """Builds settings from flat values as a person gives them: `temperature`, `depth`, `nodes`, … beside `method`.

    Raises:
        SettingError: a value is out of range or of another type; the message names the setting and the value.
    """
    parts: dict[str, Any] = {"sampling": {}, "tree": {}}
    for name, value in values.items():
        if name in SamplingSettings.model_fields:
            parts["sampling"][name] = value
        elif name.removeprefix("tree_") in TreeSettings.model_fields:
            parts["tree"][name.removeprefix("tree_")] = value
        else:
            parts[name] = value
    if "tree_top_k" in values:
        parts["tree"]["top_k"] = values["tree_top_k"]
    try:
        return GenerationSettings.model_validate(parts)
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> SettingError:
    first = error.errors()[0]
    group, *inner = [str(part) for part in first["loc"]]
    name = inner[0] if group in ("sampling", "tree") and inner else group
    name = "tree_top_k" if (group, name) == ("tree", "top_k") else name
    return SettingError(name, f"{str(first['input'])[:60]!r} is not valid: {first['msg'].lower()}")
