"""Commands on a run directory with a named pipe or a file of gigabytes in the place of a file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from made_records import made_run

FILES = ["evals.jsonl", "steps.jsonl", "events.jsonl", "status.json", "recipe.json", "recipe.toml",
         "lock", "evals/step_40.json"]  # fmt: skip
#: Kilobytes. The commands take about 0.2 GB on a small run; a file read whole would take 4 GB.
MOST_MEMORY = 900_000
COMMAND = """
import resource, sys
from scalerl.cli import main
code = main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("hostile") / "run", n=12, steps=40)


def make(run, name, kind):
    path = run / name
    if kind == "pipe":
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 4_000_000_000)


def command(*arguments):
    """The exit code, what was printed and the peak of the memory. The limit of time is for a
    command that hangs."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    said, peak = done.stderr.rsplit("peak", 1) if "peak" in done.stderr else (done.stderr, "0")
    assert "Traceback" not in said, said
    return done.returncode, done.stdout, said, int(peak)


@pytest.mark.parametrize("kind", ["pipe", "sparse"])
@pytest.mark.parametrize("name", FILES)
def test_no_command_hangs_or_fills_the_memory(run, tmp_path, name, kind):
    kept = (run / name).read_bytes() if (run / name).exists() else None
    make(run, name, kind)
    try:
        for arguments in (("doctor", run), ("fit", run), ("report", run, "-o", tmp_path / "out")):
            code, out, said, peak = command(*arguments)
            assert code in (0, 1, 2) and peak < MOST_MEMORY, arguments
            # One line that names the file, or an answer from the other files.
            assert (code == 2) == (not out) and (code != 2 or said.count("scalerl: ") == 1), said
            assert code != 2 or name in said or "no log in the directory" in said, said
    finally:
        (run / name).unlink()
        if kept is not None:
            (run / name).write_bytes(kept)


def test_the_lines_before_a_hole_are_still_known(run):
    steps = run / "steps.jsonl"
    size = steps.stat().st_size
    os.truncate(steps, 4_000_000_000)
    try:
        code, out, said, _ = command("doctor", run, "--json")
        assert code == 0 and '"step": 40' in out, (out, said)
        code, out, said, _ = command("fit", run)
        assert code == 0 and "steps.jsonl has 4.0 GB" in out + said, (out, said)
    finally:
        os.truncate(steps, size)
