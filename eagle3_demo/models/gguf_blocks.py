"""The quantised blocks of a GGUF file, kept beside the converted weights so that no product has to round them again.

GGUF quantises 32 neighbouring inputs at a time: Q4_1 is `scale * code + minimum` with 4-bit codes, Q8_0 is
`scale * code` with 8-bit codes; scales and minima are float16. `blocks.safetensors` in a converted folder holds, by the
name of each linear layer, its rows of blocks as they stand in the file, in the order of the layer's outputs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file
from torch import nn

BLOCKS_FILE = "blocks.safetensors"
BLOCK = 32
Q4_1, Q8_0 = 0, 1
"""Format numbers of kernels.c."""
_BYTES = {Q4_1: 20, Q8_0: 34}


class SplitBlocks(NamedTuple):
    """Rows of blocks taken apart.

    Attributes:
        codes: uint8 (Q4_1) or int8 (Q8_0) [outputs, blocks, 32].
        scales, minima: float16 [outputs, blocks]; Q8_0 has no minima.
    """

    format: int
    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None

    def weights(self) -> np.ndarray:
        """float32 [outputs, inputs], in the very arithmetic that reading a GGUF file has."""
        values = self.scales.astype(np.float32)[..., None] * self.codes.astype(np.float32)
        if self.minima is not None:
            values = values + self.minima.astype(np.float32)[..., None]
        return values.reshape(len(values), -1)


def split_blocks(rows: np.ndarray, inputs: int) -> SplitBlocks:
    """Takes rows of blocks apart.

    Args:
        rows: uint8 [outputs, bytes of a row].
        inputs: weights in a row.

    Raises:
        ValueError: the bytes are of neither format.
    """
    count = inputs // BLOCK
    size = rows.shape[1] // max(1, count)
    format = next((format for format, bytes_ in _BYTES.items() if bytes_ == size), None)
    if format is None or rows.shape[1] != size * count:
        raise ValueError(f"{rows.shape[1]} bytes for {inputs} weights are neither Q4_1 nor Q8_0")
    blocks = rows.reshape(len(rows), count, size)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    if format == Q8_0:
        return SplitBlocks(format, np.ascontiguousarray(blocks[..., 2:]).view(np.int8), scales, None)
    minima = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0]
    codes = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], -1)
    return SplitBlocks(format, codes, scales, minima)


def save_blocks(source: Path, model: nn.Module, folder: Path) -> None:
    """Writes the blocks of every linear layer of `model` whose weights are blocks of the GGUF file, bit for bit.

    The file's tensors are found by their values, not by their names: rows may stand in another order (GGUF keeps the
    rotary halves of queries and keys side by side).
    """
    from gguf import GGUFReader

    layers: dict[bytes, list[tuple[str, np.ndarray]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            weights = module.weight.detach().float().numpy()
            layers.setdefault(_content(weights), []).append((name, weights))
    found: dict[str, np.ndarray] = {}
    for tensor in GGUFReader(source).tensors:
        inputs = int(tensor.shape[0])
        if tensor.tensor_type.name not in ("Q4_1", "Q8_0") or len(tensor.shape) != 2:
            continue
        rows = np.asarray(tensor.data).reshape(int(tensor.shape[1]), -1)
        values = split_blocks(rows, inputs).weights()
        for name, weights in layers.get(_content(values), []):
            order = np.empty(len(rows), dtype=np.int64)
            order[_sorted_rows(weights)] = _sorted_rows(values)
            found[name] = np.ascontiguousarray(rows[order])
    if found:
        save_file(found, folder / BLOCKS_FILE)


def load_blocks(folder: Path, model: nn.Module) -> dict[nn.Linear, np.ndarray]:
    """The blocks of a converted folder by layer of `model`; empty where there are none."""
    path = folder / BLOCKS_FILE
    if not path.is_file():
        return {}
    found = load_file(path)
    return {module: found[name] for name, module in model.named_modules() if name in found}


def _sorted_rows(values: np.ndarray) -> np.ndarray:
    """Row indices in the order of the rows' bytes."""
    return np.argsort(_as_bytes(values), kind="stable")


def _content(values: np.ndarray) -> bytes:
    """What is the same for two matrices exactly if they hold the same rows in some order."""
    return hashlib.sha256(np.sort(_as_bytes(values)).data).digest()


def _as_bytes(values: np.ndarray) -> np.ndarray:
    rows = np.ascontiguousarray(values)
    return rows.view(f"S{rows.shape[1] * rows.itemsize}")[:, 0]
