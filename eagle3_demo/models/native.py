"""Compiles `kernels.c` for this very processor, once, and calls it through ctypes.

Needs a C compiler (CC, cc, gcc or clang) that knows OpenMP and GCC's vector extensions. Where there is none, or
EAGLE3_NATIVE=off, `native_kernels` says why, and PyTorch's own packed kernels do the work.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from eagle3_demo.files import cache_directory, write_atomically

SOURCE = Path(__file__).with_name("kernels.c")
SWITCH_VARIABLE = "EAGLE3_NATIVE"
# No -fopenmp when linking: the calls find the OpenMP that PyTorch has loaded, and share its threads.
_COMPILE = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-c")
_LINK = ("-shared",)


class Kernels(NamedTuple):
    """The functions of kernels.c, which describes their arguments; both return 0, or 1 when there is no memory."""

    product: Callable[..., int]
    attention: Callable[..., int]


@functools.cache
def native_kernels() -> tuple[Kernels | None, str]:
    """The compiled functions of kernels.c and an empty string, or None and why there is none.

    The first call on a machine compiles for some seconds and keeps the library in the cache directory.
    """
    if os.environ.get(SWITCH_VARIABLE, "").lower() == "off":
        return None, f"{SWITCH_VARIABLE} is off"
    compiler = next((found for name in _compilers() if (found := shutil.which(name))), None)
    if compiler is None:
        return None, "there is no C compiler (install gcc or clang)"
    try:
        library = ctypes.PyDLL(str(_library(compiler)))
        product, attention = library.product, library.attention
    except subprocess.CalledProcessError as error:
        return None, f"{compiler} could not compile {SOURCE.name} ({error.stderr.strip().splitlines()[-1:]})"
    except (OSError, AttributeError) as error:
        return None, f"the compiled {SOURCE.name} cannot be used ({error})"
    pointer, integer, number = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
    product.argtypes = [integer, pointer, integer, pointer, pointer, number, pointer, *[integer] * 5]
    attention.argtypes = [*[pointer] * 8, *[integer] * 7, number, integer]
    return Kernels(product, attention), ""


def _compilers() -> list[str]:
    return [name for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name]


def _library(compiler: str) -> Path:
    """The shared library, compiled when this source, compiler and processor have none yet."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    described = (SOURCE.read_text(encoding="utf-8"), version, " ".join(_COMPILE), _processor())
    name = hashlib.sha256("\0".join(described).encode()).hexdigest()[:16]
    library = cache_directory() / "native" / f"kernels-{name}.so"
    if not library.is_file():
        write_atomically(library, lambda temporary: _compile(compiler, temporary))
    return library


def _compile(compiler: str, library: Path) -> None:
    compiled = library.with_suffix(".o")
    try:
        for command in (
            [compiler, *_COMPILE, str(SOURCE), "-o", str(compiled)],
            [compiler, *_LINK, str(compiled), "-o", str(library)],
        ):
            subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        compiled.unlink(missing_ok=True)


def _processor() -> str:
    """What tells this processor's instructions from another's, for a cache shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
