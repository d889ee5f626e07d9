"""scalerl train --dry-run: what would be run, or what is wrong with it."""

import sys
import tomllib

import pytest

from scalerl.cli import main
from scalerl.recipe import Recipe

LOSS = """
def soft(logprobs_BT, batch, *, floor):
    return None
"""


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "dry_losses.py").write_text(LOSS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*words):
        code = main(["train", "scalerl", "tiny", *words, "--dry-run"])
        return code, *capsys.readouterr()

    yield run
    sys.modules.pop("dry_losses", None)


def test_prints_the_recipe_with_the_constants_of_ones_own_loss(dry_run):
    changes = ["loss.name=dry_losses:soft", "loss.floor=0.25"]
    code, out, _ = dry_run(*changes)
    assert code == 0
    expected = Recipe.load("scalerl", "tiny", overrides=changes)
    assert Recipe.load(tomllib.loads(out)) == expected and expected.loss.floor == 0.25


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["loss.name=dry_losses:soft"], "needs loss.floor"),
        (["loss.name=dry_losses:soft", "loss.flor=1"], "did you mean loss.floor?"),
        (["loss.name=dry_losses:sofd"], "cannot be imported"),
        (["loss.aggregation=dry_losses:soft"], "cannot be called with"),
    ],
)
def test_a_loss_that_could_not_be_called_is_refused_in_one_line(dry_run, changes, says):
    code, out, err = dry_run(*changes)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_prints_the_placement_and_what_the_papers_preset_lacks_here(capsys):
    assert main(["train", "scalerl", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert Recipe.load(tomllib.loads(out)) == Recipe.load("scalerl")
    *_, where, lacking = out.splitlines()
    assert where.startswith("# placement (ray at local): 64 generators (vllm) and 16 ranks of the")
    assert lacking.startswith("# missing: 80 GPUs are needed, this machine has 0: join a cluster")


def test_a_placement_that_fits_lacks_nothing(dry_run):
    _, out, _ = dry_run("placement.trainers=2")
    assert out.splitlines()[-1] == (
        "# placement (local): 1 generator (local) and 2 ranks of the trainer (auto), a CPU each; "
        "up to 16 checks at once"
    )


def test_all_devices_of_a_generator_are_needed(capsys):
    command = ["train", "scalerl", "placement.devices_per_generator=4", "--steps", "5", "--dry-run"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "64 generators (vllm) and 16 ranks of the trainer (fsdp), 4 GPUs a generator" in said
    assert "missing: 272 GPUs are needed" in said
