"""Only the module of the command that is asked for is imported."""

import subprocess
import sys

import pytest

from scalerl.cli import COMMANDS, MODULES, main, parser

OURS = sorted(f"scalerl.cli.{MODULES.get(name, name)}" for name in COMMANDS)


def loaded(*words):
    """Modules of commands that are imported by the time `scalerl WORDS` has ended."""
    code = (
        "import sys\nfrom scalerl.cli import main\n"
        f"try:\n    main({list(words)!r})\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {OURS!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    return done.stderr.strip().splitlines()[-1]


def test_the_help_of_a_command_loads_no_other_command():
    assert loaded("fit", "--help") == "['scalerl.cli.fit']"


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("fot",)])
def test_without_a_command_no_command_is_loaded(words):
    assert loaded(*words) == "[]"


def test_every_command_is_listed_with_its_help_in_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, about in COMMANDS.items():
        assert f"    {name:<12}{about}" in lines


def test_the_whole_parser_has_the_options_of_every_command():
    (commands,) = [a for a in parser()._actions if a.dest == "command"]
    assert list(commands.choices) == list(COMMANDS)
    for command in commands.choices.values():
        assert command.description and command.epilog and len(command._actions) > 1


def test_a_command_that_does_not_exist_is_named_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["forcast", "run.csv"])
    assert ended.value.code == 2
    assert "no command 'forcast': did you mean forecast?" in capsys.readouterr().err
