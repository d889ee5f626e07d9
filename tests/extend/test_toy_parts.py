"""Parts from outside the package, as docs/how-to/add-an-engine.md shows them, in whole runs."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import scalerl
from scalerl.algorithm.length import EndOfThought, Interruption
from scalerl.algorithm.losses.registry import LOSSES
from scalerl.engine.interface import EngineSpec, Request, Sampling
from scalerl.engine.local import LocalEngine
from scalerl.engine.registry import ENGINES
from scalerl.errors import InputError
from scalerl.models.load import model_path
from scalerl.placement.processes import ProcessHandle
from scalerl.placement.registry import PLACEMENTS
from scalerl.recipe.losses import LOSS_NAMES

HERE = Path(__file__).parent
SMALL = ["batch.prompts=2", "batch.generations=2", "validation.prompts=2", "validation.k=1",
         "length.think_tokens_min=8", "length.think_tokens_max=12", "length.answer_tokens=3",
         "filter.zero_variance=keep", "budget.steps=2"]  # fmt: skip
#: Token 3 ends the thought.
END = EndOfThought.from_text("</>", [b"", b"", b"", b"</>"])
SCRIPT = """
import sys

import toy_parts  # registers its names
from scalerl import Recipe, train

if __name__ == "__main__":
    print(train(Recipe.load("scalerl", "tiny", overrides=sys.argv[2:]), sys.argv[1]).reason)
"""


@pytest.fixture(scope="module", autouse=True)
def toy_parts():
    """The module, whose names are gone again after these tests: others count what there is."""
    registries = (ENGINES, PLACEMENTS, LOSSES)
    before, names = [dict(r._found) for r in registries], list(LOSS_NAMES._known)
    yield importlib.import_module("toy_parts")
    for registry, found in zip(registries, before, strict=True):
        registry._found = found
    LOSS_NAMES._known = names
    del sys.modules["toy_parts"]


def python(*arguments, timeout=1800):
    env = os.environ | {
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, env=env
    )


def run(out, *changes):
    """A whole run by the command line: how it ended, and what was said."""
    done = python("-m", "scalerl", "train", "scalerl", "tiny", *SMALL, *changes, "--json",
                  "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def steps(out):
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


def request(name, control, seeds, temperature=1.0):
    return Request(name, (5, 6, 7, 8), control, seeds, Sampling(temperature))


def everything(engine):
    found = {}
    while engine.health().busy:
        step = engine.step()
        found |= {(w.request, w.row): (step.lane, w.turn) for w in step.written}
    return found


def test_the_toy_engine_writes_what_the_local_one_writes(toy_parts):
    """Token for token, from the same seeds: forced phrase, answer budget, greedy draws, lanes."""
    spec = EngineSpec(model_path("tiny"), "float32", "fp32", 8, 8, 64, "cpu", False)
    control = Interruption((4, 3), END, think_min=3, think_max=9, answer_tokens=4, stop_ids=(1,))
    seeds = {0: 11, 1: 2**64 - 5, 2: 13, 3: 14}
    found = []
    for engine in (toy_parts.toy_engine(spec), LocalEngine.from_spec(spec)):
        engine.submit([request("a", control, seeds), request("b", control, {0: 3}, 0.0)])
        engine.step()
        engine.submit([request("v", control, {0: 21, 1: 22})], "validate")
        assert engine.health().lane == "validate"
        found.append(everything(engine))
    toy, local = found
    assert toy.keys() == local.keys() and len(toy) == 7
    assert any(rollout.forced.any() for _, rollout in toy.values())
    for key, (lane, rollout) in toy.items():
        other_lane, other = local[key]
        assert lane == other_lane and rollout.finish == other.finish
        for name in ("token_ids", "versions", "forced"):
            assert (getattr(rollout, name) == getattr(other, name)).all()
        np.testing.assert_allclose(rollout.logprobs, other.logprobs, atol=1e-4)


def test_what_the_toy_engine_drops_it_gives_back(toy_parts):
    spec = EngineSpec(model_path("tiny"), "float32", "fp32", 8, 8, 64, "cpu", False)
    control = Interruption((4, 3), END, think_min=9, think_max=9, answer_tokens=4)
    engine = toy_parts.toy_engine(spec)
    engine.submit([request("a", control, {0: 1, 1: 2}), request("b", control, {0: 3})])
    engine.step()
    gone = engine.abort(["a"])
    assert [(w.request, w.row, w.turn.finish, len(w.turn)) for w in gone] == [
        ("a", 0, "aborted", 1),
        ("a", 1, "aborted", 1),
    ]
    assert {name for name, _ in everything(engine)} == {"b"}


def test_a_run_with_an_engine_of_ones_own(tmp_path):
    ended, said = run(tmp_path / "run", "placement.engine=toy_parts:toy_engine")
    assert ended["reason"] == "budget of 2 steps"
    gap = re.search(r"log-prob gap before training: mean (\S+),", said)
    assert float(gap[1]) < 1e-4
    found = steps(tmp_path / "run")
    assert found[0]["staleness"]["max"] == 0 and found[0]["logprob_gap"]["max"] < 1e-4
    assert all(line["tokens"] > 0 and line["length"]["max"] > 8 for line in found)


def test_a_run_with_a_placement_of_ones_own(tmp_path):
    ended, said = run(tmp_path / "run", "placement.backend=toy_parts:toy_placement")
    assert ended["reason"] == "budget of 2 steps"
    (line,) = [line for line in said.splitlines() if line.startswith("heard:")]
    heard = ast.literal_eval(line.removeprefix("heard:").strip())
    assert heard["StepDone"] == 2 and heard["GeneratorReport"] > 2 and heard["WorkDone"] >= 4


def test_a_run_with_a_loss_of_ones_own(tmp_path):
    ended, _ = run(tmp_path / "run", "loss.name=toy_parts:toy_loss", "loss.wrong=0.5")
    assert ended["reason"] == "budget of 2 steps"
    metrics = [line["metrics"] for line in steps(tmp_path / "run")]
    assert len(metrics) == 2 and all(0 <= m["wrong_share"] <= 1 for m in metrics)


def test_registered_names_in_a_program(tmp_path):
    """All three at once, by the names that the decorators gave."""
    (tmp_path / "script.py").write_text(SCRIPT)
    names = ["placement.engine=toy", "placement.backend=toy", "loss.name=toy", "loss.wrong=0.5"]
    done = python(str(tmp_path / "script.py"), str(tmp_path / "run"), *SMALL, *names)
    assert done.stdout.strip() == "budget of 2 steps", done.stderr
    assert "wrong_share" in steps(tmp_path / "run")[-1]["metrics"] and "heard:" in done.stderr


def test_an_engine_of_ones_own_on_the_virtual_clock(tmp_path):
    """Twice the same, in one process: the quickest way to try one."""
    out = []
    for name in ("first", "second"):
        changes = [*SMALL, "placement.engine=toy", "placement.backend=inline"]
        recipe = scalerl.Recipe.load("scalerl", "tiny", overrides=changes)
        scalerl.train(recipe, tmp_path / name)
        out.append([(s["loss"], s["ledger"]["device_seconds"]) for s in steps(tmp_path / name)])
    assert out[0] == out[1] and len(out[0]) == 2


def test_the_world_of_the_page_on_the_pipeline_can_be_lived_in(tmp_path, monkeypatch):
    page = (HERE.parent.parent / "docs/explanation/pipeline.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# my_worlds.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "my_worlds.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    changes = ["placement.backend=my_worlds:rough", "placement.engine=simulated",
               "placement.trainer=simulated", "batch.prompts=4", "validation.prompts=4",
               "budget.steps=6"]  # fmt: skip
    recipe = scalerl.Recipe.load("scalerl", "tiny", overrides=changes)
    assert scalerl.train(recipe, tmp_path / "run").reason == "budget of 6 steps"
    seen = {e["event"] for e in map(json.loads, (tmp_path / "run/events.jsonl").open())}
    assert {"lost", "checker", "end"} <= seen


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["loss.wrong=0.5", "loss.wrogn=1"], "loss.wrogn is no constant of .*did you mean"),
        ([], "loss toy_parts:toy_loss needs loss.wrong"),
    ],
)
def test_a_wrong_constant_is_refused_before_any_process_starts(
    tmp_path, monkeypatch, changes, says
):
    def started(*arguments):
        raise AssertionError("a process was started")

    monkeypatch.setattr(ProcessHandle, "__init__", started)
    changes = [*SMALL, "loss.name=toy_parts:toy_loss", *changes]
    with pytest.raises(InputError, match=says):
        scalerl.train(scalerl.Recipe.load("scalerl", "tiny", overrides=changes), tmp_path / "run")


def test_a_wrong_constant_is_one_line_on_the_command_line(tmp_path):
    done = python("-m", "scalerl", "train", "scalerl", "tiny", *SMALL, "--plain",
                  "loss.name=toy_parts:toy_loss", "loss.wrong=1", "loss.wrogn=1",
                  "--out", str(tmp_path / "run"))  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("scalerl: loss.wrogn is no constant of toy_parts:toy_loss")
