"""Head checkpoints on disk: `config.json` and `model.safetensors`, named and shaped as public EAGLE-3 heads are.

The format is the one that SGLang and vLLM read (eagle3_reference.md 2.2, 2.6): official tensor names, no embeddings
when the head's width is the target's, offsets in `d2t`, no tap ids when the taps are the default ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.models.head import Eagle3Config, Eagle3Head

_PREFIXES = ("draft_model.", "model.")


def save_head(head: Eagle3Head, folder: Path, dtype: torch.dtype = torch.float16) -> None:
    """Writes a head that our loader and public engines read; each file is replaced atomically."""
    tensors = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous().cpu()
        for name, tensor in head.state_dict().items()
        if not name.startswith("rotary.")
    }
    text = json.dumps(_public_config(head.config, dtype), indent=2) + "\n"
    write_atomically(folder / "model.safetensors", lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    write_atomically(folder / "config.json", lambda path: path.write_text(text, encoding="utf-8"))


def _public_config(config: Eagle3Config, dtype: torch.dtype) -> dict[str, Any]:
    fields = config.model_dump(exclude_none=True, exclude={"taps"})
    if config.taps is not None:
        fields["eagle_aux_hidden_state_layer_ids"] = list(config.taps)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **fields,
    }


def load_head(folder: Path, *, vocabulary_size: int, hidden_size: int) -> Eagle3Head:
    """Reads a head in float32 and checks it against the target it will serve.

    Args:
        folder: holds `config.json` and `model.safetensors`.
        vocabulary_size, hidden_size: the target's.

    Raises:
        UserError: a file is missing or damaged, a tensor is missing, extra or of another shape, or the vocabulary map
            does not fit; nothing half-loaded stays behind.
    """
    config = read_head_config(folder)
    if config.vocab_size != vocabulary_size:
        raise UserError(
            f"head {folder} is for a vocabulary of {config.vocab_size}, the target has {vocabulary_size}; "
            "use the head that was trained for this target"
        )
    if config.tapped_size != hidden_size:
        raise UserError(f"head {folder} reads hidden states of {config.tapped_size}, the target has {hidden_size}")
    path = folder / "model.safetensors"
    try:
        found = {_plain_name(name): tensor for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"head weights {path} cannot be read ({error}); fetch or train the head again") from error
    head = Eagle3Head(config)
    _fill_vocabulary_map(found, config, path)
    expected = {name: tensor for name, tensor in head.state_dict().items() if not name.startswith("rotary.")}
    found.pop("embed_tokens.weight", None) if "embed_tokens.weight" not in expected else None
    _check_tensors(found, expected, path)
    head.load_state_dict({name: tensor.to(expected[name].dtype) for name, tensor in found.items()}, strict=False)
    return head.eval().requires_grad_(False)


def read_head_config(folder: Path) -> Eagle3Config:
    """The head's sizes and variants from `config.json`.

    Raises:
        UserError: the file is missing, damaged, or describes something else.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
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
    values["taps"] = values.get("eagle_aux_hidden_state_layer_ids")
    known = {name: values[name] for name in Eagle3Config.model_fields if values.get(name) is not None}
    try:
        return Eagle3Config.model_validate(known)
    except ValidationError as error:
        raise UserError(f"head config {path}: {error.errors()[0]['loc']} {error.errors()[0]['msg']}") from error


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
