"""The library in C: built where a compiler is, kept, and done without where it cannot be had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.models.cpu import library as build

ASK = "from scalerl.models.cpu.library import library; print(library() is not None)"
HAS_COMPILER = any(shutil.which(name) for name in ("cc", "gcc", "clang"))


def start(**environment):
    return subprocess.Popen(
        [sys.executable, "-c", ASK], env=os.environ | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def asked(**environment):
    out, err = start(**environment).communicate(timeout=600)
    assert err == ""
    return out.strip() == "True"


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_processes_that_start_together_build_one_library_and_keep_it(tmp_path):
    both = [start(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)]
    assert [p.communicate(timeout=600)[0].strip() for p in both] == ["True", "True"]
    kept = list((tmp_path / "scalerl").iterdir())
    assert len(kept) == 1
    made = kept[0].stat().st_mtime_ns
    assert asked(XDG_CACHE_HOME=str(tmp_path))
    assert kept[0].stat().st_mtime_ns == made


@pytest.mark.parametrize("script", [None, "#!/bin/sh\nexit 1\n", "#!/bin/sh\nexit 0\n"])
def test_without_a_compiler_that_works_there_is_no_library_and_no_complaint(tmp_path, script):
    if script is not None:
        (tmp_path / "cc").write_text(script)
        (tmp_path / "cc").chmod(0o755)
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    assert not asked(PATH=str(tmp_path), **places)


def test_one_may_do_without(tmp_path):
    assert not asked(SCALERL_CPU="torch", XDG_CACHE_HOME=str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "scalerl").write_text("in the way")
    places = {"XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    assert asked(**places)


@pytest.fixture
def kept(tmp_path):
    """A library in a cache of its own."""
    assert asked(XDG_CACHE_HOME=str(tmp_path))
    (found,) = (tmp_path / "scalerl").glob("*.so")
    return found


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_a_library_that_is_cut_off_is_built_anew(kept, part, tmp_path):
    whole = kept.read_bytes()
    kept.write_bytes(whole[: int(len(whole) * part)])
    assert asked(XDG_CACHE_HOME=str(tmp_path))
    assert kept.read_bytes() == whole


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_a_library_with_another_byte_is_built_anew(kept, tmp_path):
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert asked(XDG_CACHE_HOME=str(tmp_path))
    assert kept.read_bytes() == whole


def planted(kept, trace):
    """In place of a kept library, one that leaves a trace when it is loaded."""
    source = kept.parent.parent / "planted.c"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) void f(void)"
        f'{{ FILE *t = fopen("{trace}", "w"); if (t) fclose(t); }}\n'
    )
    made = source.with_suffix(".so")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    data = made.read_bytes()
    start = kept.stem.rpartition("-")[0]
    kept.unlink()
    path = kept.with_name(f"{start}-{build._checksum(data)}.so")
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def open_to_all(path):
    path.parent.chmod(0o777)


def file_open_to_all(path):
    path.chmod(0o666)


def parent_open_to_all(path):
    path.parent.parent.chmod(0o777)


def of_another_user(path):
    os.chown(path, 65534, 65534)


def folder_of_another_user(path):
    os.chown(path.parent, 65534, 65534)


def a_link(path):
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler here")
@pytest.mark.parametrize(
    "change",
    [
        open_to_all, file_open_to_all, parent_open_to_all, of_another_user,
        folder_of_another_user, a_link,
    ],
)  # fmt: skip
def test_a_library_that_others_may_have_written_is_not_loaded(kept, change, tmp_path):
    if "another_user" in change.__name__ and os.geteuid():
        pytest.skip("only root can give files away")
    trace = tmp_path / "ran"
    path = planted(kept, trace)
    change(path)
    assert asked(XDG_CACHE_HOME=str(tmp_path))
    assert not trace.exists()


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler here")
def test_a_library_of_ones_own_is_loaded(kept, tmp_path):
    """So that the test above tests what it says."""
    trace = tmp_path / "ran"
    planted(kept, trace)
    assert asked(XDG_CACHE_HOME=str(tmp_path))
    assert trace.exists()


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_a_relative_cache_is_ignored(tmp_path):
    made = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, text=True, capture_output=True, timeout=120,
        env=os.environ | {"XDG_CACHE_HOME": "cache", "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert made.stdout.strip() == "True"
    assert not (tmp_path / "cache").exists()
    assert list((tmp_path / "home" / ".cache" / "scalerl").glob("*.so"))


HANG = """
import subprocess, sys
from multiprocessing import get_context
from scalerl.models.cpu import library as build

build.COMPILE_SECONDS = 0.5

def ask():
    build.COMPILE_SECONDS = 0.5
    sys.exit(build.library() is not None)

if __name__ == "__main__":
    ends = [build.library() is not None]
    for method in ("fork", "spawn"):
        worker = get_context(method).Process(target=ask)
        worker.start()
        worker.join()
        ends.append(worker.exitcode)
    print(ends)
"""


def is_running(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("cached", [True, False])
def test_a_compiler_that_hangs_is_paid_once_and_leaves_no_process(tmp_path, cached):
    (tmp_path / "cc").write_text(
        f"#!/bin/sh\nsleep 1000 &\necho $! >> {tmp_path}/started\nsleep 1000\n"
    )
    (tmp_path / "cc").chmod(0o755)
    (tmp_path / "hang.py").write_text(HANG)
    if not cached:
        (tmp_path / "cache").write_text("in the way")
    places = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for _ in range(2 if cached else 1):  # other processes know it by the cache
        made = subprocess.run(
            [sys.executable, str(tmp_path / "hang.py")], env=os.environ | places, text=True,
            capture_output=True, timeout=300,
        )  # fmt: skip
        assert (made.stdout.strip(), made.stderr) == ("[False, 0, 0]", "")
    started = (tmp_path / "started").read_text().split()
    assert len(started) == 1
    assert not is_running(started[0])


def test_the_sources_are_part_of_the_package():
    names = {path.name for path in (Path(build.__file__).parent / "csrc").iterdir()}
    assert {"decode.c", "vectors.h"} <= names
