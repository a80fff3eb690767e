"""What a corpus was made with: its target, tokenizer, prompts and settings, and whether two of them are the same.

Targets are told apart by their numbers, not their names: a renamed folder is the same target. Manifests of older
versions lack some keys; what is not there is not compared.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from eagle3_demo.errors import UserError
from eagle3_demo.training.prompts import Turns, prompts_digest

NAMES_ONLY = ("target", "revision")
VALUES_OF_A_PARAMETER = 256


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """What a corpus is made with; written into its manifest and checked on resume.

    Attributes:
        temperatures: sampling temperatures, one drawn for each prompt; repeated values weigh more.
        max_new_tokens: longest answer in tokens; a longer one is cut and stays without its end token.
        max_prompt_tokens: longer prompts are left out.
        batch_size: answers in flight at once.
        seed: for the order of the prompts, their temperatures, the follow-ups and the sampling.
        follow_up_share: share of the single-turn prompts that get a second turn (training/prompts.py).
    """

    temperatures: tuple[float, ...] = (0.0, 0.0, 0.0, 0.6, 1.0)
    max_new_tokens: int = 256
    max_prompt_tokens: int = 512
    batch_size: int = 192
    seed: int = 0
    follow_up_share: float = 0.0

    def described(self) -> dict[str, Any]:
        """What the answers depend on, as the manifest holds it."""
        values = asdict(self) | {"temperatures": list(self.temperatures)}
        values.pop("batch_size")
        return values


def target_identity(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """A target as a manifest describes it: name, revision where a hub gave one, hashes of weights and tokenizer."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    identity = {
        "target": name,
        "fingerprint": target_fingerprint(model),
        "weights_sha256": weights_digest(model),
        "tokenizer_sha256": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "template_sha256": hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest(),
    }
    if revision := getattr(model.config, "_commit_hash", None):
        identity["revision"] = revision
    return identity


def corpus_manifest(identity: dict[str, Any], prompts: list[Turns], settings: CorpusSettings) -> dict[str, Any]:
    """What a corpus depends on; resuming with anything else is refused."""
    return {**identity, "prompts_sha256": prompts_digest(prompts), "settings": settings.described()}


def read_manifest(folder: Path) -> dict[str, Any]:
    """A corpus folder's manifest.

    Raises:
        UserError: it is missing or damaged.
    """
    path = folder / "manifest.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not {"target", "fingerprint", "settings"} <= found.keys():
            raise ValueError("it lacks target, fingerprint or settings")
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not a corpus: it has no manifest.json; make one with `corpus`") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or make the corpus again elsewhere") from error
    return found


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Names of what two manifests disagree about, `found` being the older one."""
    names = [key for key in wanted if key not in NAMES_ONLY and key != "settings"]
    different = [key for key in names if key in found and found[key] != wanted[key]]
    if "settings" in wanted:
        settings = {**CorpusSettings().described(), **found["settings"]}
        if settings != wanted["settings"]:
            keys = sorted(key for key in settings if settings[key] != wanted["settings"].get(key))
            different.append(f"settings ({', '.join(keys)})")
    return different


def target_fingerprint(model: PreTrainedModel) -> str:
    """A short hash that tells one target from another: architecture, sizes and a slice of its embeddings.

    The same for the same weights in float32 and in bfloat16.
    """
    embedding = model.get_input_embeddings().weight
    config = model.config.get_text_config()
    sizes = (config.model_type, config.hidden_size, config.num_hidden_layers, *embedding.shape)
    sample = embedding[:: max(1, len(embedding) // 64), :16].to(torch.bfloat16).float().round(decimals=2)
    return hashlib.sha256(repr((sizes, sample.tolist())).encode()).hexdigest()[:16]


def weights_digest(model: PreTrainedModel) -> str:
    """A hash over a sample of every parameter, rounded to bfloat16: tells fine-tunes of one base apart."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        sample = parameter.detach().flatten()[:: max(1, parameter.numel() // VALUES_OF_A_PARAMETER)]
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(sample.to(torch.bfloat16).cpu().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
