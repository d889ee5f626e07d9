"""scalerl completion, in bash itself."""

import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from scalerl.cli import main, parser
from scalerl.cli.completion import described
from scalerl.recipe import presets
from scalerl.recipe.problems import known_keys

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
#: A safety limit, in seconds.
LIMIT = 60.0


@pytest.fixture
def script(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion.bash"
    path.write_text(capsys.readouterr().out)
    return path


def completed(script, *words):
    """What bash would offer for the last of these words; it splits words at "=" before."""
    code = (
        f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _scalerl; '
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-c", code, "bash", "scalerl", *words],
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return [line for line in done.stdout.splitlines() if line]


def test_commands_and_commands_in_commands(script):
    every = [each.name for each in described(parser())]
    assert completed(script, "") == [n for n in every if n and " " not in n]
    assert completed(script, "tra") == ["train"]
    assert completed(script, "recipe", "s") == ["show"]


@pytest.mark.parametrize("command", [each.name for each in described(parser()) if each.name])
def test_every_option_of_every_command(script, command):
    (wanted,) = [each for each in described(parser()) if each.name == command]
    assert completed(script, *command.split(), "-") == list(wanted.options)


def test_presets_keys_and_files_where_recipes_are_named(script, tmp_path):
    (tmp_path / "scaled recipe.toml").write_text("")
    wanted = [name for name in presets() if name.startswith("scale")]
    assert completed(script, "train", "scale") == [*wanted, "scaled recipe.toml"]
    assert completed(script, "recipe", "diff", "scalerl", "mini") == ["minimax-m1"]
    keys = completed(script, "study", "out", "scalerl", "tiny", "optimiser.")
    assert keys == [f"{key}=" for key in known_keys() if key.startswith("optimiser.")]
    assert completed(script, "study", "out", "--sweep", "loss.na") == ["loss.name="]


def test_values_of_keys_and_of_options(script):
    assert completed(script, "train", "scalerl", "loss.name", "=", "ci") == ["cispo"]
    assert completed(script, "train", "scalerl", "optimiser.decay", "=") == [
        "constant", "linear", "cosine"
    ]  # fmt: skip
    assert completed(script, "train", "loss.name=ci") == ["loss.name=cispo"], "as zsh splits"
    assert completed(script, "study", "out", "--batch-lr", "") == ["kept", "sqrt"]
    assert completed(script, "completion", "") == ["bash", "zsh", "fish"]


def test_an_interactive_bash_completes_when_tab_is_pressed(script):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PS1"] = "ready> "
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        os.write(terminal, f'source {script}; scalerl() {{ echo "got $*"; }}\n'.encode())
        os.write(terminal, b"scalerl trai\tscalerl-sco\tloss.na\tda\t\n")
        seen, deadline = b"", time.monotonic() + LIMIT
        while b"got train" not in seen and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1.0)[0]:
                seen += os.read(terminal, 4096)
        assert b"got train scalerl-scout loss.name=dapo" in seen, seen
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("scalerl tra", ["train"]),
        ("scalerl recipe sh", ["show"]),
        ("scalerl recipe show mini", ["minimax-m1"]),
        ("scalerl train schedule.name=pi", ["schedule.name=pipeline"]),
        ("scalerl completion z", ["zsh"]),
    ],
)
def test_fish_completes(tmp_path, capsys, line, offered):
    assert main(["completion", "fish"]) == 0
    script = tmp_path / "completion.fish"
    script.write_text(capsys.readouterr().out)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
        capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == offered, done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_an_interactive_zsh_completes_when_tab_is_pressed(tmp_path, capsys):
    assert main(["completion", "zsh"]) == 0
    script = tmp_path / "completion.zsh"
    script.write_text(capsys.readouterr().out)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PS1": "ready> ", "TERM": "dumb", "HOME": str(tmp_path)}
        os.execvp("zsh", ["zsh", "-f", "-i"])
    try:
        read_until(terminal, b"ready> ")
        # The quotes keep the echo of the typed line from looking like the output of `echo`.
        begin = f"source {script}; scalerl() {{ echo \"got $*\"; }}; echo lo''aded\n"
        os.write(terminal, begin.encode())
        read_until(terminal, b"loaded")
        os.write(terminal, b"scalerl trai\tscalerl-sco\tloss.name=da\t\n")
        seen = read_until(terminal, b"got train")
        assert b"got train scalerl-scout loss.name=dapo" in seen, seen
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def read_until(terminal, text):
    """What a terminal shows until a line with this text has ended, or until LIMIT."""
    seen, deadline = b"", time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 4096)
        elif text in seen:  # nothing more has come for a second
            break
    return seen


def test_the_other_shells_have_the_same_words(capsys):
    assert main(["completion", "zsh"]) == 0
    assert "bashcompinit" in capsys.readouterr().out
    assert main(["completion", "fish"]) == 0
    out = capsys.readouterr().out
    for each in described(parser()):
        for option in each.options:
            assert f" {option.lstrip('-')} -d " in out
    assert "minimax-m1" in out and "schedule.k=" in out
