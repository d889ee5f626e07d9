"""The C sources as a library: compiled once for this processor, kept in the user's cache.

A machine without a compiler, one whose compiler fails, or SCALERL_NATIVE=0 gives None: who asks
then computes with torch. What the library computes is compared with the model's own numbers before
it is used (native decoders refuse to be made otherwise), so a wrong build is found out.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-trapping-math", "-fPIC", "-shared",
)  # fmt: skip
#: A compiler that takes longer is given up: compiling takes seconds.
PATIENCE = 120.0


def library() -> ctypes.CDLL | None:
    """The library, or None where there is none to be had."""
    return None if os.environ.get("SCALERL_NATIVE", "1") == "0" else _library()


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or os.name != "posix":
        return None
    name = f"kernels-{_fingerprint(compiler)}.so"
    try:
        return _loaded(compiler, _cache() / name)
    except (OSError, subprocess.SubprocessError):
        pass  # not writable, or not to be executed there: for this process only, if at all
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _loaded(compiler, Path(folder) / name)
    except (OSError, subprocess.SubprocessError):
        return None


def _loaded(compiler: str, path: Path) -> ctypes.CDLL:
    if not path.exists():
        _compile(compiler, path)
    return ctypes.CDLL(str(path))


def _fingerprint(compiler: str) -> str:
    """Of all that the result depends on: a home directory may be shared by unlike machines."""
    parts = [compiler, platform.machine(), platform.libc_ver()[1], *FLAGS]
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        lines = cpu.read_text().splitlines()
        kinds = ("model name", "flags", "Features", "CPU part")
        parts += sorted({line for line in lines if line.startswith(kinds)})
    else:
        parts.append(platform.processor())
    parts += [path.read_text() for path in sorted(SOURCES.glob("*.[ch]"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "scalerl"


def _compile(compiler: str, path: Path) -> None:
    """Under another name first: processes that start together may all do this."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        sources = [str(s) for s in sorted(SOURCES.glob("*.c"))]
        subprocess.run(
            [compiler, *FLAGS, *sources, "-o", str(made), "-lm"],
            check=True, capture_output=True, timeout=PATIENCE,
        )  # fmt: skip
        made.rename(path)
