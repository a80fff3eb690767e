"""Turns a GGUF file into a transformers folder once, and knows whether a folder made earlier is still whole.

transformers reads GGUF itself but needs half a minute for it; the converted folder loads in seconds. Weights are
kept in float32 because Q4_1 and Q8_0 values (scale x integer + minimum) are exact in neither float16 nor bfloat16,
and once more as the file's own blocks (`gguf_blocks`), which are what the packed products read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_demo.errors import UserError
from eagle3_demo.models.gguf_blocks import save_blocks
from eagle3_demo.progress import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = 2
"""Raised whenever `convert_gguf` writes something else than before, so that old folders are rebuilt."""
STAMP = "conversion.json"


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def conversion_name(source_sha256: str) -> str:
    """Folder name of a conversion: another format, another transformers or another source is another folder."""
    return f"{source_sha256[:16]}-format{FORMAT}-transformers{_transformers_major()}"


def is_whole(folder: Path) -> bool:
    """Whether `folder` holds a finished conversion whose files are what was written.

    A file is hashed again only when its modification time differs from the recorded one: a start stays fast.
    """
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        return stamp["format"] == FORMAT and all(
            _is_unchanged(folder / name, record) for name, record in stamp["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def convert_gguf(source: Path, folder: Path, progress: ProgressCallback) -> None:
    """Writes model, tokenizer and stamp of a GGUF file to the empty `folder`, the stamp last.

    Args:
        source: a GGUF file.
        folder: an existing empty folder.
        progress: told fractions of this conversion, 0 to 1.

    Raises:
        UserError: the file is damaged or of an architecture that transformers cannot read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        progress(0.0, "Reading the tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        _split_digits(tokenizer, source)
        progress(0.1, "Converting the weights (once, about half a minute)")
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    except (ValueError, LookupError, ArithmeticError, RuntimeError, OSError, MemoryError, struct.error) as error:
        raise UserError(f"{source} cannot be read as a GGUF model ({error}); give another file") from error
    # Loaded from GGUF the model calls itself quantised and refuses to be saved; its weights are plain float32 by now.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer, model.is_quantized = None, False
    progress(0.85, "Writing the converted model")
    model.save_pretrained(folder)
    save_blocks(source, model, folder)
    tokenizer.save_pretrained(folder)
    _write_stamp(folder)
    progress(1.0, "Converted")


def _split_digits(tokenizer: PreTrainedTokenizerBase, source: Path) -> None:
    """Restores the original pre-tokenizer of the SmolLM family, which transformers drops when it reads GGUF.

    Without it white space before a digit is cut in another place: "\\n\\n1." gives other ids (faults B39).
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(source).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend: Any = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


def _write_stamp(folder: Path) -> None:
    records = {
        file.name: {"bytes": file.stat().st_size, "modified_ns": file.stat().st_mtime_ns, "sha256": sha256_of(file)}
        for file in sorted(folder.iterdir())
    }
    stamp = {"format": FORMAT, "transformers": version("transformers"), "files": records}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1), encoding="utf-8")


def _is_unchanged(file: Path, record: dict[str, Any]) -> bool:
    state = file.stat()
    if state.st_size != record["bytes"]:
        return False
    return bool(state.st_mtime_ns == record["modified_ns"] or sha256_of(file) == record["sha256"])


def _transformers_major() -> str:
    return version("transformers").partition(".")[0]
