"""Head checkpoints on disk: `config.json` and `model.safetensors`, named and shaped as public heads are.

EAGLE-3: the format that SGLang and vLLM read (eagle3_reference.md 2.2, 2.6): official tensor names, no embeddings when
the head's width is the target's, offsets in `d2t`, no tap ids when the taps are the default ones. EAGLE-2: the names of
public EAGLE heads (`fc`, `layers.0.*`), without the embeddings and the LM head, which are the target's.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.models.acceleration import pack_head
from eagle3_demo.models.draft_head import DraftHead, DraftHeadConfig
from eagle3_demo.models.eagle2 import Eagle2Config, Eagle2Head, LanguageModelHead
from eagle3_demo.models.head import Eagle3Config, Eagle3Head
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import Method

Config = TypeVar("Config", bound=DraftHeadConfig)
Head = TypeVar("Head", bound=DraftHead)

_PREFIXES = ("draft_model.", "model.")
_ARCHITECTURES = {"eagle3": "LlamaForCausalLMEagle3", "eagle2": "LlamaForCausalLMEagle"}
_ONLY_EAGLE3 = {"midlayer.hidden_norm.weight", "norm.weight", "d2t"}
_LAYER_NAMES = {"eagle3": "midlayer.", "eagle2": "layers.0."}


def save_head(head: DraftHead, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Writes a head that our loader and public engines read; each file is replaced atomically."""
    tensors = {
        name.replace("midlayer.", _LAYER_NAMES[head.method], 1): (
            tensor.to(dtype) if tensor.is_floating_point() else tensor
        )
        .contiguous()
        .cpu()
        for name, tensor in _own_tensors(head).items()
    }
    text = json.dumps(_public_config(head, dtype), indent=2) + "\n"
    write_atomically(folder / "model.safetensors", lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write_atomically(folder / "config.json", lambda path: path.write_text(text, encoding="utf-8"))


def _own_tensors(head: DraftHead) -> dict[str, torch.Tensor]:
    """Parameters and buffers that a checkpoint holds; rotary tables follow from the config."""
    return {name: tensor for name, tensor in head.state_dict().items() if not name.startswith("rotary.")}


def _public_config(head: DraftHead, dtype: torch.dtype) -> dict[str, Any]:
    fields = head.config.model_dump(exclude_none=True, exclude={"taps"})
    if isinstance(head.config, Eagle3Config) and head.config.taps is not None:
        fields["eagle_aux_hidden_state_layer_ids"] = list(head.config.taps)
    return {
        "architectures": [_ARCHITECTURES[head.method]],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **fields,
    }


def head_method(folder: Path) -> Method:
    """Which method the head in a folder drafts for, by the tensors it holds.

    Raises:
        UserError: the folder holds no head, or its weights cannot be read.
    """
    _config_values(folder)
    path = folder / "model.safetensors"
    try:
        with safe_open(path, "pt") as file:
            names = {_plain_name(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error
    return "eagle2" if _is_eagle2(names) else "eagle3"


def load_draft_head(folder: Path, target: TargetModel) -> DraftHead:
    """Reads a head of either kind, ready to draft for a target: on its device, in its dtype, packed where it is packed.

    Raises:
        UserError: as for `load_head`.
    """
    vocabulary_size, hidden_size = target.vocabulary_size, target.hidden_size
    head: DraftHead
    if head_method(folder) == "eagle2":
        head = load_eagle2_head(
            folder, vocabulary_size=vocabulary_size, hidden_size=hidden_size, target_lm_head=target.lm_head
        )
    else:
        head = load_head(folder, vocabulary_size=vocabulary_size, hidden_size=hidden_size)
    head = head.to(target.device, target.dtype)
    if target.packed:
        pack_head(head)
    return head


def load_head(folder: Path, *, vocabulary_size: int, hidden_size: int) -> Eagle3Head:
    """Reads an EAGLE-3 head in float32 and checks it against the target it will serve.

    Args:
        folder: holds `config.json` and `model.safetensors`.
        vocabulary_size, hidden_size: the target's.

    Raises:
        UserError: a file is missing or damaged, a tensor is missing, extra or of another shape, the vocabulary map
            does not fit, or it is an EAGLE-2 head; nothing half-loaded stays behind.
    """
    config = read_head_config(folder)
    _check_target(folder, config, config.tapped_size, vocabulary_size, hidden_size)
    path, found = _read_tensors(folder)
    if _is_eagle2(found.keys()):
        raise UserError(f"{folder} holds an EAGLE-2 head, not an EAGLE-3 one; use it with the method eagle2")
    head = Eagle3Head(config)
    _fill_vocabulary_map(found, config, path)
    return _filled(head, found, path)


def load_eagle2_head(
    folder: Path, *, vocabulary_size: int, hidden_size: int, target_lm_head: LanguageModelHead
) -> Eagle2Head:
    """Reads an EAGLE-2 head in float32 and checks it against the target it will serve.

    Args:
        folder: holds `config.json` and `model.safetensors`.
        vocabulary_size, hidden_size: the target's.
        target_lm_head: the target's LM head.

    Raises:
        UserError: as for `load_head`, or it is an EAGLE-3 head.
    """
    config = _validated(folder, Eagle2Config, _config_values(folder))
    _check_target(folder, config, config.hidden_size, vocabulary_size, hidden_size)
    path, found = _read_tensors(folder)
    if found.keys() & _ONLY_EAGLE3:
        raise UserError(f"{folder} holds an EAGLE-3 head, not an EAGLE-2 one; use it with the method eagle3")
    return _filled(Eagle2Head(config, target_lm_head), found, path)


def read_head_config(folder: Path) -> Eagle3Config:
    """An EAGLE-3 head's sizes and variants from `config.json`.

    Raises:
        UserError: the file is missing, damaged, or describes something else.
    """
    values = _config_values(folder)
    values["taps"] = values.get("eagle_aux_hidden_state_layer_ids")
    return _validated(folder, Eagle3Config, values)


def _config_values(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        heads = values["num_attention_heads"]
        values.setdefault("head_dim", values["hidden_size"] // heads)
        values.setdefault("num_key_value_heads", heads)
        values.setdefault("draft_vocab_size", values["vocab_size"])
    except FileNotFoundError as error:
        raise UserError(f"{folder} is no head: {path.name} is missing; give the folder of an EAGLE-3 head") from error
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"head config {path} is damaged or incomplete ({error!r})") from error
    if values.get("num_hidden_layers", 1) != 1:
        raise UserError(f"head {folder} has {values['num_hidden_layers']} layers; only heads of one layer can be run")
    return values


def _validated(folder: Path, kind: type[Config], values: dict[str, Any]) -> Config:
    known = {name: values[name] for name in kind.model_fields if values.get(name) is not None}
    try:
        return kind.model_validate(known)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"head config {folder / 'config.json'}: {first['loc']} {first['msg']}") from error


def _check_target(
    folder: Path, config: DraftHeadConfig, feature_size: int, vocabulary_size: int, hidden_size: int
) -> None:
    if config.vocab_size != vocabulary_size:
        raise UserError(
            f"head {folder} is for a vocabulary of {config.vocab_size}, the target has {vocabulary_size}; "
            "use the head that was trained for this target"
        )
    if feature_size != hidden_size:
        raise UserError(f"head {folder} reads hidden states of {feature_size}, the target has {hidden_size}")


def _read_tensors(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    path = folder / "model.safetensors"
    try:
        return path, {_plain_name(name): tensor for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"head weights {path} cannot be read ({error}); fetch or train the head again")


def _is_eagle2(names: Collection[str]) -> bool:
    return "fc.weight" in names and not _ONLY_EAGLE3.intersection(names)


def _filled(head: Head, found: dict[str, torch.Tensor], path: Path) -> Head:
    """The head with the tensors found, frozen; embeddings are the target's where the head needs none of its own."""
    expected = _own_tensors(head)
    if "embed_tokens.weight" not in expected:
        found.pop("embed_tokens.weight", None)
    _check_tensors(found, expected, path)
    head.load_state_dict({name: tensor.to(expected[name].dtype) for name, tensor in found.items()}, strict=False)
    return head.eval().requires_grad_(False)


def _plain_name(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace("layers.0.", "midlayer.", 1) if name.startswith("layers.0.") else name


def _fill_vocabulary_map(found: dict[str, torch.Tensor], config: Eagle3Config, path: Path) -> None:
    """Supplies a missing map where it is certain, and refuses one that does not fit (faults B35)."""
    if "d2t" not in found:
        if config.draft_vocab_size != config.vocab_size:
            raise UserError(f"{path} has a draft vocabulary of {config.draft_vocab_size} but no d2t tensor to map it")
        found["d2t"] = torch.zeros(config.draft_vocab_size, dtype=torch.long)
    if found["d2t"].shape != (config.draft_vocab_size,):
        raise UserError(f"{path}: d2t has shape {tuple(found['d2t'].shape)}, expected ({config.draft_vocab_size},)")
    ids = found["d2t"].long() + torch.arange(config.draft_vocab_size)
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise UserError(f"{path}: d2t points outside the target's vocabulary; it must hold offsets, not ids")
    if len(ids.unique()) != len(ids):
        raise UserError(f"{path}: d2t maps two draft tokens to one target token; it must hold offsets, not ids")
    members = torch.zeros(config.vocab_size, dtype=torch.bool)
    members[ids] = True
    if "t2d" in found and not torch.equal(found["t2d"].bool(), members):
        raise UserError(f"{path}: d2t and t2d disagree about the draft vocabulary")
    found["t2d"] = members


def _check_tensors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], path: Path) -> None:
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}")
    if extra:
        raise UserError(f"{path} holds unknown tensors: {', '.join(extra)}")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            raise UserError(f"{path}: {name} has shape {tuple(found[name].shape)}, expected {tuple(tensor.shape)}")
        if tensor.is_floating_point() and not found[name].is_floating_point():
            kind = str(found[name].dtype).removeprefix("torch.")
            raise UserError(f"{path}: {name} holds {kind} values; only floating-point weights can be run")
        if found[name].is_floating_point() and not found[name].isfinite().all():
            raise UserError(f"{path}: {name} holds values that are not finite")
