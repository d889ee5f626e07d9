"""Commands that messages print work when they are pasted."""

import shlex
from pathlib import Path

import pytest

from scalerl.cli import parser
from scalerl.runs import commands

PATHS = ["runs/first", "my runs/it's", 'a "b" c', "$HOME/`ls`; rm", "-dash", "ö/tab\there"]


@pytest.mark.parametrize("path", PATHS)
def test_a_command_to_go_on_is_read_as_it_was_meant(path):
    words = shlex.split(commands.resume(path, "optimiser.lr=1e-06", step=20))
    assert words[0] == "scalerl"
    args = parser().parse_known_args(words[1:])[0]
    assert Path(args.resume) == Path(path) and args.from_step == 20


@pytest.mark.parametrize("path", PATHS)
def test_a_command_for_a_report_is_read_as_it_was_meant(path):
    args = parser().parse_args(shlex.split(commands.report(Path(path)))[1:])
    assert Path(args.source[0]) == Path(path) and Path(args.out) == Path(path) / "report"


def test_a_healthy_checkpoint_is_asked_for_by_that_word():
    assert commands.resume("r", step="healthy") == "scalerl train --resume r --from healthy"
