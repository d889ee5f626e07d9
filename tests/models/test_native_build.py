"""The library in C: built where a compiler is, kept, and done without where it cannot be had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scalerl.models.native import build

ASK = "from scalerl.models.native.build import library; print(library() is not None)"
HAS_COMPILER = any(shutil.which(name) for name in ("cc", "gcc", "clang"))


def start(**environment):
    return subprocess.Popen(
        [sys.executable, "-c", ASK], env=os.environ | environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def asked(**environment):
    out, err = start(**environment).communicate(timeout=120)
    assert err == ""
    return out.strip() == "True"


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_processes_that_start_together_build_one_library_and_keep_it(tmp_path):
    both = [start(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)]
    assert [p.communicate(timeout=120)[0].strip() for p in both] == ["True", "True"]
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
    assert not asked(SCALERL_NATIVE="0", XDG_CACHE_HOME=str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here")
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "scalerl").write_text("in the way")
    places = {"XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    assert asked(**places)


def test_the_sources_are_part_of_the_package():
    names = {path.name for path in Path(build.__file__).parent.iterdir()}
    assert {"decode.c", "lanes.h"} <= names
