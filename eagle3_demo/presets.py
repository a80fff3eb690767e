"""Named pairs of target and draft head: where they come from, what they need, and whether they can run here.

They are the embedded pair, which runs anywhere, and public pairs of which most fit on one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from eagle3_demo.errors import UserError

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Preset:
    """One pair.

    Attributes:
        name: what a person types.
        target: hub id of the target; for the embedded preset where its weights originally come from.
        head: hub id or local folder of the draft head.
        license: the target's licence; a public head states its own on its page.
        gated: whether the hub hands the target only to logged-in users who accepted its licence.
        gigabytes: memory for 16-bit weights of both, cache and workspace; float32 needs about twice that.
        embedded: whether the target is the one this project brings along (models/embedded.py).
        eagle2_head: local folder of an EAGLE-2 head, for contrast; where it holds no head, the method eagle2 decodes
            plainly and says so.
    """

    name: str
    target: str
    head: str
    license: str
    gated: bool
    gigabytes: float
    embedded: bool = False
    eagle2_head: str | None = None


EMBEDDED = Preset(
    name="smollm2-135m-instruct",
    target="HuggingFaceTB/SmolLM2-135M-Instruct",
    head=str(REPOSITORY / "checkpoints" / "smollm2-135m-instruct-eagle3"),
    license="apache-2.0",
    gated=False,
    gigabytes=1.0,
    embedded=True,
    eagle2_head=str(REPOSITORY / "checkpoints" / "smollm2-135m-instruct-eagle2"),
)

PRESETS: tuple[Preset, ...] = (
    EMBEDDED,
    Preset("qwen3-1.7b", "Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3", "apache-2.0", False, 5.0),
    Preset("qwen3-4b", "Qwen/Qwen3-4B", "AngelSlim/Qwen3-4B_eagle3", "apache-2.0", False, 10.0),
    Preset("qwen3-8b", "Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", "apache-2.0", False, 20.0),
    Preset(
        "deepseek-r1-distill-llama-8b",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
        "mit",
        False,
        20.0,
    ),
    Preset(
        "llama-3.1-8b-instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "llama3.1",
        True,
        20.0,
    ),
    Preset("qwen3-14b", "Qwen/Qwen3-14B", "AngelSlim/Qwen3-14B_eagle3", "apache-2.0", False, 34.0),
    Preset("qwen3-32b", "Qwen/Qwen3-32B", "AngelSlim/Qwen3-32B_eagle3", "apache-2.0", False, 70.0),
    Preset(
        "llama-3.3-70b-instruct",
        "meta-llama/Llama-3.3-70B-Instruct",
        "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
        "llama3.3",
        True,
        150.0,
    ),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to run on; memory in 10^9 bytes. `gpu` is None without a CUDA device."""

    memory: float
    gpu: str | None
    gpu_memory: float


def this_machine() -> Machine:
    """The machine this process runs on. Imports torch."""
    import torch

    memory = psutil.virtual_memory().total / 1e9
    if not torch.cuda.is_available():
        return Machine(memory, None, 0.0)
    properties = torch.cuda.get_device_properties(0)
    return Machine(memory, properties.name, properties.total_memory / 1e9)


def find_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UserError: there is none; the message lists those there are.
    """
    for preset in PRESETS:
        if preset.name == name:
            return preset
    raise UserError(f"there is no preset {name!r}; choose one of {', '.join(preset.name for preset in PRESETS)}")


def obstacle(preset: Preset, machine: Machine, *, logged_in: bool, cached: bool) -> str | None:
    """Why a preset cannot run, in words; None where it can.

    Args:
        logged_in: whether a hub token is at hand.
        cached: whether the target's files are on this machine already.
    """
    if preset.embedded:
        if not (Path(preset.head) / "model.safetensors").is_file():
            return f"its draft head is missing: {preset.head}"
        return None if machine.memory >= 2 * preset.gigabytes else f"needs {2 * preset.gigabytes:.0f} GB of memory"
    if preset.gated and not logged_in and not cached:
        return f"gated: accept the licence at huggingface.co/{preset.target}, then run `hf auth login`"
    if machine.gpu is None:
        needed = 2 * preset.gigabytes
        if machine.memory < needed:
            return f"needs a GPU with {preset.gigabytes:.0f} GB, or {needed:.0f} GB of memory without one"
    elif machine.gpu_memory < preset.gigabytes:
        return f"needs a GPU with {preset.gigabytes:.0f} GB; {machine.gpu} has {machine.gpu_memory:.0f}"
    return None


def is_cached(preset: Preset) -> bool:
    """Whether the hub cache of this machine holds the target of a public preset."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(preset.target, "config.json"), str)
