"""Compiles the C sources once per machine into a library, cached in the user's cache directory.

`library()` is None on a machine without a compiler, where compiling fails, and where the switch
says so (SCALERL_CPU=torch): callers then compute with torch. What the library computes is compared
with the model's own numbers before it is used, so a wrong build is noticed.

The name of a cached library holds its checksum, since loading a truncated file would end the
process with SIGBUS. A library is loaded only if this user owns it and its directory and
no other user may write to them: it runs with all rights of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from scalerl.files import write_atomic
from scalerl.models.cpu import SWITCH, cpu_mode

SOURCES = Path(__file__).parent / "csrc"
FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-trapping-math", "-fPIC", "-shared",
)  # fmt: skip
#: Seconds that the compiler may take; it needs a few.
COMPILE_SECONDS = 120.0
#: Seconds for which other processes do not retry a compiler that took longer.
RETRY_SECONDS = 3600.0


def library() -> ctypes.CDLL | None:
    """The compiled library, or None where it is not available or switched off."""
    return _library() if cpu_mode() == "auto" else None


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or os.name != "posix":
        return None
    name = f"kernels-{_fingerprint(compiler)}"
    cache = _cache()
    if cache is not None:
        for path in cache.glob(f"{name}-*.so"):
            if _is_whole(path) and (found := _loaded(path)):
                return found
        if _is_given_up(cache / f"{name}.slow"):
            return None
    try:
        return _built(compiler, name, cache)
    except OSError:  # no room for a temporary directory
        return None


def _built(compiler: str, name: str, cache: Path | None) -> ctypes.CDLL | None:
    """Compile the library, and cache it where that is possible."""
    with tempfile.TemporaryDirectory(prefix="scalerl-") as folder:
        made = Path(folder) / "kernels.so"
        try:
            if not _compile(compiler, made):
                return None
        except subprocess.TimeoutExpired:
            _give_up(cache, name)
            return None
        cached = _cached(made, name, cache) if cache is not None else None
        # Either directory may be on a file system that is mounted noexec.
        return (cached and _loaded(cached)) or _loaded(made)


def _loaded(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None


def _fingerprint(compiler: str) -> str:
    """A hash of everything the result depends on: a home directory may be shared by different
    machines."""
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


def _cache() -> Path | None:
    """The cache directory; None where other users could write to it, since the library runs with
    all rights of this process."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # The XDG standard ignores relative paths: one would lie below the working directory, for
        # example in a downloaded repository.
        root = given if given.is_absolute() else Path("~/.cache").expanduser()
        folder = root / "scalerl"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        return folder if _is_ours(folder) and all(map(_is_safe, folder.parents)) else None
    except (OSError, RuntimeError):  # not writable, or no home directory
        return None


def _is_ours(path: Path) -> bool:
    """Whether this user owns a file or directory, and no other may write to it."""
    info = path.lstat()
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022 and not path.is_symlink()


def _is_safe(folder: Path) -> bool:
    """Whether only this user and root can replace what is in a directory above the cache. The
    sticky bit, as of /tmp, protects the files of one user from the others."""
    info = folder.stat()
    open_to_all = info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX
    # In a rootless container, directories of root belong to the overflow user, as / does.
    owners = (0, os.geteuid(), Path("/").stat().st_uid)
    return info.st_uid in owners and not open_to_all


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _is_whole(path: Path) -> bool:
    """Whether a cached library belongs to this user and matches its checksum; a damaged one is
    removed."""
    try:
        if not _is_ours(path) or not path.is_file():
            return False
        if path.stem.endswith(f"-{_checksum(path.read_bytes())}"):
            return True
        path.unlink()
    except OSError:
        pass
    return False


def _cached(made: Path, name: str, cache: Path) -> Path | None:
    """Put a library into the cache, atomically: processes that start together all do this."""
    data = made.read_bytes()
    path = cache / f"{name}-{_checksum(data)}.so"
    try:
        return write_atomic(path, data, mode=0o600)
    except OSError:  # full, or not writable
        return None


def _compile(compiler: str, made: Path) -> bool:
    """Run the compiler in its own process group: it starts subprocesses that must end with it."""
    sources = [str(s) for s in sorted(SOURCES.glob("*.c"))]
    quiet = subprocess.DEVNULL
    started = subprocess.Popen(
        [compiler, *FLAGS, *sources, "-o", str(made), "-lm"],
        stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
        env=os.environ | {"TMPDIR": str(made.parent)},
    )  # fmt: skip
    try:
        return started.wait(COMPILE_SECONDS) == 0 and made.is_file()
    except BaseException:
        # Kill before wait(): afterwards the pid may be reused by another process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        raise


def _give_up(cache: Path | None, name: str) -> None:
    """Remember a compiler that hangs: in the environment for child processes, and by a file in the
    cache for others."""
    os.environ[SWITCH] = "torch"
    if cache is not None:
        with contextlib.suppress(OSError):
            (cache / f"{name}.slow").touch()


def _is_given_up(mark: Path) -> bool:
    try:
        return _is_ours(mark) and 0.0 <= time.time() - mark.stat().st_mtime < RETRY_SECONDS
    except OSError:
        return False
