"""What a dry run says of time, memory, disk and cost."""

import json
import os
import subprocess
import sys
import tomllib

import pytest

from scalerl.cli import main
from scalerl.recipe import Recipe

#: Steps of a moment, in real processes.
SMALL = ["scalerl", "tiny", "batch.prompts=4", "batch.generations=4", "validation.prompts=16",
         "validation.k=2", "validation.also_temperatures=[]", "budget.steps=200",
         "budget.gpu_hours=", "validation.every=50"]  # fmt: skip


def scalerl(tmp_path, *words):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "scalerl", *words],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path / "here",
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp"), "SCALERL_CPU": "torch"},
    )
    assert done.returncode == 0, done.stderr
    left = [p.name for p in (tmp_path / "tmp").iterdir() if p.name.startswith("scalerl")]
    assert left == [] and list((tmp_path / "here").iterdir()) == [], "nothing is left behind"
    return done.stdout


def test_sizes_are_arithmetic_on_the_models_parameters(capsys):
    assert main(["train", "scalerl", "tiny", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (memory,) = [line for line in lines if line.startswith("# memory")]
    assert "137,024 parameters; trainer 2 MB a rank (16 bytes a parameter" in memory
    assert any("--measure-steps 3 runs three steps" in line for line in lines)
    assert main(["train", "scalerl", "tiny", "model.dtype=bfloat16", "--dry-run"]) == 0
    assert "(18 bytes a parameter" in capsys.readouterr().out, "masters are FP32"


def test_an_adapters_sizes_and_its_learning_rate_with_its_source(capsys):
    assert main(["train", "scalerl", "tiny", "adapter.rank=8", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "# adapter: rank 8, alpha 16, all linear layers, merged; 23,552 of 137,024" in out
    assert "94 kB a publish instead of 548 kB" in out
    rate = "# learning rate: 0.002 = optimiser.lr 0.0002 x adapter.lr_factor 10 (community: "
    assert rate in out
    words = ["adapter.targets=['q_proj','v_proj']", "adapter.alpha=8", "adapter.mode=unmerged"]
    assert main(["train", "scalerl", "tiny", "adapter.rank=1", *words, "--dry-run"]) == 0
    assert "rank 1, alpha 8, q_proj, v_proj, unmerged; " in capsys.readouterr().out
    more = ["adapter.rank=8", "adapter.lr_factor=20"]
    assert main(["train", "scalerl", "tiny", *more, "--dry-run"]) == 0
    rate = "0.004 = optimiser.lr 0.0002 x adapter.lr_factor 20 (set by this recipe; the default is"
    assert rate in capsys.readouterr().out


def test_a_model_that_is_not_here_is_not_asked_for(capsys):
    assert main(["train", "scalerl", "--dry-run"]) == 0
    assert "# memory and disk: known once the model is on this machine" in capsys.readouterr().out


def test_time_memory_and_cost_are_measured_on_request(tmp_path):
    words = ["--dry-run", "--measure-steps", "3", "--price", "2"]
    out = scalerl(tmp_path, "train", *SMALL, *words)
    assert Recipe.load(tomllib.loads(out)) == Recipe.load(*SMALL[:2], overrides=SMALL[2:]), (
        "the recipe itself is not the trial's"
    )
    lines = [line.removeprefix("# ") for line in out.splitlines() if line.startswith("# ")]
    assert [x for x in lines if x.startswith("time (measured: 3 steps of scalerl+tiny, run just")]
    (whole,) = [x for x in lines if x.startswith("whole run (extrapolated): 200 steps (budget.st")]
    assert "5 validations included" in whole
    assert [x for x in lines if "of 32 answers" in x], "the validations of the recipe"
    assert [x for x in lines if x.startswith("cost: ") and x.endswith("at 2 a device-hour")]
    if sys.platform == "linux":
        (memory,) = [x for x in lines if x.startswith("memory (measured")]
        assert "trainer" in memory and "generator 0" in memory and " MB" in memory


def test_the_hours_of_a_study_are_measured_on_request(tmp_path):
    words = ["--sweep", "optimiser.lr=1e-4", "--seeds", "2", "--dry-run", "--json"]
    small = [*SMALL, "placement.backend=inline"]
    out = scalerl(tmp_path, "study", "s", *small, *words, "--measure-steps", "3", "--price", "2")
    found = json.loads(out)
    assert found["hours"] > 0 and found["compute"]["steps"] == 4 * 200
    assert found["compute"]["rate"] == "3 steps of scalerl+tiny, run just now"
    assert found["cost"] == pytest.approx(2 * found["compute"]["device_hours"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", *SMALL, "--out", "run", "--measure-steps", "3"], "give --dry-run as well"),
        (["study", "s", *SMALL, "--price", "3"], "--price estimates a run: give --dry-run"),
        (["train", *SMALL, "--dry-run", "--measure-steps", "1"], "give 3 or more"),
        (["train", *SMALL, "--dry-run", "--measure-steps", "3", "model.path=/no/model"], "no such"),
    ],
)
def test_what_cannot_be_measured_is_one_line(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1 and list(tmp_path.iterdir()) == []
