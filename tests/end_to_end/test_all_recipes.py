"""Every recipe of the paper, and every choice of a recipe, in real runs of `scalerl train`."""

import json
import math
import os
import subprocess
import sys

import pytest

from scalerl.algorithm.aggregation import AGGREGATIONS
from scalerl.algorithm.losses import LOSSES
from scalerl.recipe import Recipe
from scalerl.recipe.fields import names_of
from scalerl.recipe.problems import known_fields

SMALL = ("batch.prompts=4", "batch.generations=4", "validation.prompts=8", "validation.k=1",
         "validation.every=100", "task.options.prompts=200")  # fmt: skip
PAPER = ("scalerl", "base", "deepseek-grpo", "qwen-dapo", "magistral", "minimax-m1")
#: Two items can be thought through within the budget, three cannot.
TIGHT = ("length.think_tokens_min=9", "length.think_tokens_max=12")
#: Acts from the second token on.
PENALTY = ("length.control=penalty", "length.penalty_max=40", "length.penalty_cache=39",
           "length.max_tokens=40")  # fmt: skip
NO_CONTROL = ("length.control=none", "length.max_tokens=40")
#: Any right answer in the group retires a prompt.
RETIRING = ("curriculum.name=no-positive-resampling", "curriculum.threshold=0.25")
UNIFORM = ("curriculum.name=uniform",)


def choices(loss, aggregation, normalisation, schedule, k, *more):
    return (f"loss.name={loss}", f"loss.aggregation={aggregation}",
            f"advantage.normalisation={normalisation}", f"schedule.name={schedule}",
            f"schedule.k={k}", *more)  # fmt: skip


#: Every loss once; under both schedules every aggregation, normalisation, curriculum and length
#: control.
COVER = {
    "cispo": choices("cispo", "prompt", "batch", "pipeline", 1, *RETIRING, *TIGHT),
    "dapo": choices("dapo", "token", "prompt", "pipeline", 2, *UNIFORM, *PENALTY,
                    "filter.zero_variance=keep"),
    "dr-grpo": choices("dr-grpo", "constant", "none", "pipeline", 2, *RETIRING, *NO_CONTROL,
                       "filter.truncated=keep"),
    "gspo": choices("gspo", "sample", "batch", "pipeline", 3, *UNIFORM, *TIGHT,
                    "precision.trainer_head=model", "precision.generator_head=model"),
    "sequence-tis": choices("sequence-tis", "sample", "batch", "pipeline", 2, *UNIFORM, *TIGHT),
    "off-grpo": choices("grpo", "sample", "prompt", "off-policy", 2, *UNIFORM, *PENALTY),
    "off-reinforce": choices("reinforce", "constant", "none", "off-policy", 1, *RETIRING, *TIGHT,
                             "loss.count_forced_tokens=true"),
    "off-gspo": choices("gspo", "token", "batch", "off-policy", 3, *RETIRING, *NO_CONTROL,
                        "filter.zero_variance=keep"),
    "off-cispo": choices("cispo", "prompt", "none", "off-policy", 2, *UNIFORM, *PENALTY,
                         "precision.trainer_head=bf16-emulated",
                         "precision.generator_head=bf16-emulated"),
}  # fmt: skip


def recipe_of(name):
    return Recipe.load("scalerl", "tiny", overrides=COVER[name])


#: Runs one command line after the other. Workers are forked from what has been imported already:
#: importing it anew would take most of the time.
SERVER = """
import contextlib, io, json, multiprocessing, sys
import torch.multiprocessing
import scalerl.engine.local, scalerl.trainer.local, transformers.models.llama.modeling_llama
from scalerl.cli import main

context = multiprocessing.get_context
multiprocessing.get_context = lambda kind=None: context("fork")
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(json.loads(line))
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Runs `scalerl train` and gives back its steps."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip

    def run(name, preset, *arguments, steps):
        out = tmp_path_factory.mktemp(name) / "run"
        line = ["train", preset, "tiny", *SMALL, *arguments, "--out", str(out)]
        # A run that stands still ends by its minutes, short of its steps.
        budget = ["--steps", str(steps), "--minutes", "3"]
        print(json.dumps(line + budget), file=server.stdin, flush=True)
        code, said = json.loads(server.stdout.readline())
        assert code == 0, said
        found = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
        assert [s["step"] for s in found] == list(range(1, steps + 1))
        return found

    with server:
        yield run


@pytest.fixture(scope="module", params=COVER)
def covered(request, train):
    """The recipe and the steps of one run of the covering set."""
    easy = ("task.options.items_max=5", "seed=3")
    steps = train(request.param, "scalerl", *easy, *COVER[request.param], steps=5)
    return recipe_of(request.param), steps


def numbers(record):
    """Every number in a record, whatever it is nested in."""
    if isinstance(record, dict):
        record = list(record.values())
    if isinstance(record, list):
        return [n for item in record for n in numbers(item)]
    return [record] if isinstance(record, int | float) else []


def check_statistics(steps):
    for s in steps:
        assert all(map(math.isfinite, numbers(s)))
        assert s["loss"] is not None and s["grad_norm"] is not None and s["reward"] is not None
        for share in ("zero_variance", "truncated", "interrupted", "pass_rate", "mixed_versions"):
            assert 0 <= s[share] <= 1, share
        assert s["non_finite"] == 0
        assert 0 < s["ess"] <= 1 + 1e-6
        assert s["ratio"]["min"] <= s["ratio"]["mean"] <= s["ratio"]["max"]
        filtered = s["filtered"]
        assert filtered["prompts"] == 4 and filtered["rollouts"] == 16
        assert filtered["effective_rollouts"] <= 16
    for kind in ("device_hours", "flops", "generated_tokens", "trained_tokens", "samples"):
        values = [s["compute"][kind] for s in steps]
        assert values == sorted(values)


@pytest.mark.parametrize("preset", PAPER)
def test_every_recipe_of_the_paper_trains(train, preset):
    steps = train(preset, preset, steps=20)
    check_statistics(steps)
    assert sum(s["grad_norm"] > 0 for s in steps) >= 3


def test_the_covering_set_has_every_choice():
    recipes = [recipe_of(name) for name in COVER]

    def names(key):
        return set(names_of(known_fields()[key]))

    assert {r.loss.name for r in recipes} == set(LOSSES)
    # `lag` runs in one process only: tests/end_to_end/test_inline.py.
    for schedule in names("schedule.name") - {"lag"}:
        under = [r for r in recipes if r.schedule.name == schedule]
        assert {r.loss.aggregation for r in under} == set(AGGREGATIONS)
        for section, field in (("advantage", "normalisation"), ("curriculum", "name"),
                               ("length", "control")):  # fmt: skip
            found = {getattr(getattr(r, section), field) for r in under}
            assert found == names(f"{section}.{field}"), (schedule, section)


def test_every_choice_trains_with_statistics_that_make_sense(covered):
    _, steps = covered
    check_statistics(steps)
    assert any(s["grad_norm"] > 0 for s in steps)


def test_staleness_is_what_the_schedule_allows(covered):
    recipe, steps = covered
    oldest = max(s["staleness"]["max"] for s in steps)
    if recipe.schedule.name == "pipeline":
        assert oldest <= recipe.schedule.k
    else:  # one set of weights for a whole phase, which ends before a token is k steps old
        assert oldest < recipe.schedule.k
        assert all(s["mixed_versions"] == 0 for s in steps)


def test_only_interruption_interrupts(covered):
    recipe, steps = covered
    acts = recipe.length.control == "interruption"
    assert (max(s["interrupted"] for s in steps) > 0) == acts


def test_the_penalty_is_paid_by_right_answers_only(covered):
    recipe, steps = covered
    for s in steps:
        whole = 2 * s["pass_rate"] - 1
        if recipe.length.control == "penalty" and s["pass_rate"]:
            assert -1 <= s["reward"] < whole
        else:
            assert s["reward"] == pytest.approx(whole, abs=1e-6)


def test_solved_prompts_retire_and_only_by_resampling(covered):
    recipe, steps = covered
    retired = [s["retired"] for s in steps]
    assert retired == sorted(retired)
    assert (retired[-1] > 0) == (recipe.curriculum.name == "no-positive-resampling")
