"""Which members a study has, what differs between them, and what may be asked of one that is
there: nothing is run here."""

import json
import math
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest

from scalerl import InputError, Recipe, Study
from scalerl.cli import main
from scalerl.cli.study_view import dry_run_text
from scalerl.runs.lines import EvalLine, EventLine, StepLine
from scalerl.runs.store import RunStore
from scalerl.study.definition import (
    StudyDefinition,
    definition_from,
    parse_axis,
    read_definition,
    variants,
)
from scalerl.study.members import check_same
from scalerl.study.models import GeneratedModel, models_of, size_path

LOO = ["loo-plan", "loo-lp", "loo-batch", "loo-8op", "loo-fp32", "loo-savg", "loo-dapo",
       "loo-uniform"]  # fmt: skip


def planned(*words, capsys):
    assert main(["study", *words, "--dry-run", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(*words, capsys):
    assert main(["study", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("scalerl: ")
    return said


def test_leave_one_out_is_the_eight_variants_and_the_recipe_itself(tmp_path, capsys):
    out = tmp_path / "loo"
    found = planned(str(out), "scalerl", "tiny", "--leave-one-out", "--seeds", "3", capsys=capsys)
    names = list(dict.fromkeys(m["variant"] for m in found["members"]))
    assert names == ["scalerl+tiny", *LOO] and found["reference"] == "scalerl+tiny"
    assert len(found["members"]) == 27
    assert [m["seed"] for m in found["members"][:3]] == [0, 1, 2]
    assert set(found["members"][0]) == {"name", "variant", "seed", "recipe", "differs"}
    changes = {m["variant"]: m["differs"] for m in found["members"]}
    assert changes["scalerl+tiny"] == {}
    assert changes["loo-plan"] == {"advantage.normalisation": "prompt"}
    assert changes["loo-dapo"]["loss.name"] == "dapo"
    assert found["compute"]["steps"] == 27 * 300
    assert found["compute"]["rollouts"] == 27 * 300 * 512
    assert found["hours"] is None and "unknown until" in found["compute"]["rate"]
    assert found["screening"] == {"steps": 80}, "a quarter, up to the next validation"
    assert not out.exists(), "a dry run writes nothing"


def test_forward_rivals_and_sweeps_make_variants(tmp_path, capsys):
    out = str(tmp_path / "s")
    found = planned(out, "base", "tiny", "--forward", capsys=capsys)
    assert "forward-cispo" in {m["variant"] for m in found["members"]}
    found = planned(out, "scalerl", "tiny", "optimiser.lr=1e-4", "--recipes",
                    "magistral,deepseek-grpo", capsys=capsys)  # fmt: skip
    names = [m["variant"] for m in found["members"]]
    assert names == ["scalerl+tiny", "magistral+tiny", "deepseek-grpo+tiny"]
    assert all("optimiser.lr" not in m["differs"] for m in found["members"])
    assert all("model.path" not in m["differs"] for m in found["members"])
    found = planned(out, "scalerl", "tiny", "--sweep", "loss.ratio_cap=4,5,8", "--sweep",
                    "schedule.k=1,2", capsys=capsys)  # fmt: skip
    changes = {m["variant"]: m["differs"] for m in found["members"]}
    assert changes == {
        "scalerl+tiny": {},
        "ratio_cap-4": {"loss.ratio_cap": 4.0},
        "ratio_cap-8": {"loss.ratio_cap": 8.0},
        "k-1": {"schedule.k": 1},
        "k-2": {"schedule.k": 2},
    }, "one at a time, and what the recipe already is, is left out"


def test_words_may_follow_options(tmp_path, capsys):
    found = planned(str(tmp_path / "s"), "--seeds", "2", "scalerl", "tiny", "batch.prompts=8",
                    capsys=capsys)  # fmt: skip
    assert [m["name"] for m in found["members"]] == ["scalerl+tiny-s0", "scalerl+tiny-s1"]
    assert found["compute"]["rollouts"] == 2 * 300 * 8 * 16


@pytest.mark.parametrize(
    ("base", "axis", "changes"),
    [
        ("tiny", "batch", [{"batch.prompts": 16}, {"batch.prompts": 64}]),
        ("tiny", "batch=128", [{"batch.prompts": 8}]),
        ("tiny", "generations", [{"batch.prompts": 64, "batch.generations": 8},
                                 {"batch.prompts": 16, "batch.generations": 32}]),
        ("tiny", "length", [{"length.think_tokens_min": 40, "length.think_tokens_max": 48},
                            {"length.think_tokens_min": 72, "length.think_tokens_max": 80}]),
        ("tiny", "model=tiny-noisy", [{"model.path": "tiny-noisy"}]),
        ("", "batch", [{"batch.prompts": 32}, {"batch.prompts": 128}]),
        ("", "generations", [{"batch.prompts": 96, "batch.generations": 8},
                             {"batch.prompts": 32, "batch.generations": 24},
                             {"batch.prompts": 24, "batch.generations": 32}]),
        ("", "length", [{"length.think_tokens_min": 30720, "length.think_tokens_max": 32768}]),
        ("", "model", [{"model.path": "meta-llama/Llama-4-Scout-17B-16E-Instruct"}]),
        ("", "mixture", [{"task.name": "math+code"}]),
        ("tiny", "mixture", [{"task.name": "running-sums+carry-sums"}]),
        ("", "mixture=math+code@0.8/0.2",
         [{"task.name": "math+code", "task.weights": [0.8, 0.2]}]),
    ],
)  # fmt: skip
def test_axes_have_the_papers_values_or_those_of_a_laptop(tmp_path, base, axis, changes):
    words = ["scalerl", *([base] if base else [])]
    study = Study(tmp_path / "s", words, axis=dict([parse_axis(axis)]))
    assert [study.differs(name) for name in list(study.variants)[1:]] == changes


def test_other_sizes_of_the_tiny_model_are_the_studys_own(tmp_path, capsys):
    out = tmp_path / "s"
    found = planned(str(out), "scalerl", "tiny", "--axis", "model", capsys=capsys)
    changes = {m["variant"]: m["differs"] for m in found["members"]}
    assert changes == {
        "scalerl+tiny": {},
        "model-1x64": {"model.path": str(out / "models" / "tiny-1x64")},
        "model-2x128": {"model.path": str(out / "models" / "tiny-2x128")},
    }
    small, large = found["models"]
    assert not small["there"] and 0.2 < small["minutes"] < large["minutes"] < 15
    said = dry_run_text(Study(out, ["scalerl", "tiny"], axis={"model": ()}), None)
    assert "made first and once, about" in " ".join(said.split())


def test_a_size_of_the_tiny_model_is_made_once_and_whole(tmp_path):
    pytest.importorskip("torch")
    made = GeneratedModel.sized(tmp_path / "models" / "tiny-1x32", "forgetful", 1, 32)
    half = tmp_path / "models" / "tiny-1x32.making"
    half.mkdir(parents=True)
    (half / "left-by-a-kill").write_text("")
    quick = replace(made, words=(*made.words, "--steps", "2", "1", "--rollouts", "4"))
    quick.make()
    weights = made.path / "model.safetensors"
    before = weights.stat().st_mtime_ns
    quick.make()
    assert made.there and weights.stat().st_mtime_ns == before and not half.exists()
    card = json.loads((made.path / "warmstart.json").read_text())
    assert card["settings"]["layers"] == 1 and card["settings"]["width"] == 32


def test_a_larger_vocabulary_is_derived_once_from_any_name_in_the_studys_models(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "models" / "tiny-vocab300"
    recipe = Recipe.load("scalerl", "tiny", overrides=[f"model.path={path}"])
    (made,) = models_of([recipe], tmp_path)
    assert made.words == ("--from", "tiny", "--vocabulary", "300") and not made.there
    made.make()
    assert made.there and json.loads((path / "config.json").read_text())["vocab_size"] == 300
    assert size_path(Recipe.load("scalerl", "tiny"), "vocab300", tmp_path) == str(path)
    large = recipe.replace({"model.path": f"{path}-logits40"})
    assert models_of([large], tmp_path)[0].words[-2:] == ("--logits", "40")


def test_the_learning_rate_is_kept_on_the_batch_axis_or_goes_with_its_root(tmp_path, capsys):
    out = str(tmp_path / "s")
    kept = planned(out, "scalerl", "tiny", "--axis", "batch", capsys=capsys)
    assert all("optimiser.lr" not in m["differs"] for m in kept["members"])
    scaled = planned(out, "scalerl", "tiny", "--axis", "batch", "--batch-lr", "sqrt",
                     capsys=capsys)  # fmt: skip
    rates = {m["variant"]: m["differs"].get("optimiser.lr") for m in scaled["members"]}
    assert rates["batch-1024"] == pytest.approx(2e-4 * math.sqrt(2))
    said = refused(out, "scalerl", "tiny", "--batch-lr", "sqrt", capsys=capsys)
    assert "needs the axis batch" in said


def test_a_study_file_says_the_same_and_is_what_the_directory_keeps(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(
        'recipe = ["scalerl", "tiny"]\nleave_one_out = true\nseeds = 2\nsteps = 40\n'
        'recipes = ["magistral"]\n[sweep]\n"schedule.k" = [1, 2]\n[axis]\nbatch = []\n'
    )
    flags = ["scalerl", "tiny", "--leave-one-out", "--seeds", "2", "--steps", "40", "--recipes",
             "magistral", "--sweep", "schedule.k=1,2", "--axis", "batch"]  # fmt: skip
    a = planned(str(tmp_path / "s"), str(file), capsys=capsys)
    b = planned(str(tmp_path / "s"), *flags, capsys=capsys)
    assert a == b and len(a["members"]) == 2 * (9 + 1 + 2 + 2)
    more = planned(str(tmp_path / "s"), str(file), "batch.prompts=8", "--seeds", "3", capsys=capsys)
    assert len(more["members"]) == 3 * 14
    study = Study(tmp_path / "s", ["scalerl", "tiny"], leave_one_out=True, seeds=2, steps=40)
    study.write()
    kept = read_definition(tmp_path / "s" / "study.toml")
    assert kept.variants == ("scalerl+tiny", *LOO) and kept.seeds == 2 and kept.steps == 40
    again = Study(tmp_path / "s")
    assert again.variants == study.variants and again.members == study.members
    copy = planned(str(tmp_path / "other"), str(tmp_path / "s" / "study.toml"), capsys=capsys)
    assert [m["name"] for m in copy["members"]] == [m.name for m in study.members]


def test_another_study_in_the_same_directory_is_refused_with_what_differs(tmp_path, capsys):
    out = str(tmp_path / "s")
    Study(out, ["scalerl", "tiny"], sweep={"schedule.k": [1]}, seeds=2, steps=40).write()
    same = [out, "scalerl", "tiny", "--sweep", "schedule.k=1", "--seeds", "2", "--steps", "40"]
    assert len(planned(*same, capsys=capsys)["members"]) == 4
    said = refused(*same, "batch.prompts=8", capsys=capsys)
    assert "batch.prompts of scalerl+tiny is 32, not 8" in said
    said = refused(*same[:5], "--seeds", "1", "--steps", "40", capsys=capsys)
    assert "it has 2 seeds, not 1" in said
    said = refused(*same[:5], "--seeds", "2", "--steps", "20", capsys=capsys)
    assert "budget.steps of scalerl+tiny is 40, not 20" in said
    said = refused(out, "scalerl", "tiny", "--seeds", "2", "--steps", "40", capsys=capsys)
    assert "its variant k-1 is not asked for" in said
    said = refused(out, "magistral", "tiny", "--seeds", "2", "--steps", "40", capsys=capsys)
    assert "its reference is scalerl+tiny, not magistral+tiny" in said


def test_a_study_grows_by_seeds_steps_and_variants(tmp_path, capsys):
    out = str(tmp_path / "s")
    Study(out, ["scalerl", "tiny"], leave_one_out=True, variants=["loo-plan"], steps=40).write()
    found = planned(out, "--seeds", "3", "--steps", "60", capsys=capsys)
    assert len(found["members"]) == 6 and found["budget"] == {"steps": 60}
    found = planned(out, "--sweep", "schedule.k=1", capsys=capsys)
    names = [m["variant"] for m in found["members"]]
    assert names == ["scalerl+tiny", "loo-plan", "k-1"], "what was left out does not come back"
    found = planned(out, "--variants", "loo-lp", capsys=capsys)
    assert [m["variant"] for m in found["members"]] == ["scalerl+tiny", "loo-plan", "loo-lp"]
    words = ["scalerl", "tiny", "--leave-one-out", "--steps", "40"]
    assert len(planned(out, *words, capsys=capsys)["members"]) == 9


def test_variants_stay_what_they_are_when_their_files_change(tmp_path):
    overlay = tmp_path / "mine.toml"
    overlay.write_text("[batch]\nprompts = 8\n")
    Study(tmp_path / "s", ["scalerl", "tiny", str(overlay)], sweep={"schedule.k": [1]}).write()
    overlay.write_text("[batch]\nprompts = 4\n")
    study = Study(tmp_path / "s", seeds=2)
    assert {r.batch.prompts for r in study.variants.values()} == {8}
    overlay.unlink()
    assert len(Study(tmp_path / "s", sweep={"schedule.k": [1, 2]}).members) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["scalerl", "--axis", "height"], "no axis 'height': choose from model, length"),
        (["scalerl", "--axis", "model=2x128"], "2x128 is a size of the tiny model, and"),
        (["scalerl", "tiny", "--axis", "model=1x33"], "a width that is a multiple of 32"),
        (["scalerl", "tiny", "--axis", "batch=100"], "no multiple of the 16 generations"),
        (["scalerl", "tiny", "--axis", "generations=7"], "do not divide the 512 completions"),
        (["scalerl", "tiny", "--sweep", "loss.ratio_cup=4"], "cup"),
        (["scalerl", "tiny", "--sweep", "schedule.k="], "sweeps nothing"),
        (["scalerl", "tiny", "--sweep", "schedule.k=0"], "variant k-0: "),
        (["scalerl", "tiny", "--variants", "loo-pan", "--leave-one-out"], "mean loo-plan?"),
        (["scalerl", "tiny", "--seeds", "0"], "0 seeds"),
        (["scalerl", "tiny", "--steps", "0"], "0 steps"),
        (["scalerl", "tiny", "--jobs", "0"], "--jobs 0"),
        (["scalerl", "tiny", "--screen", "2"], "a share up to 1"),
        (["scalrl", "tiny"], "did you mean scalerl?"),
        (["seed=1"], "which recipe?"),
        ([], "holds no study: name a recipe"),
    ],
)
def test_bad_input_is_one_line(tmp_path, words, says, capsys):
    assert says in refused(str(tmp_path / "s"), *words, capsys=capsys)
    assert not (tmp_path / "s").exists()


def test_a_study_file_with_a_wrong_word_is_one_line(tmp_path, capsys):
    file = tmp_path / "study.toml"
    for text, says in [
        ('recipe = ["scalerl"]\nseed = 3\n', "did you mean seeds?"),
        ('recipe = ["scalerl"]\nseeds = "3"\n', "seeds = '3' is not a value"),
        ("recipe = [3]\n", "no text"),
    ]:
        file.write_text(text)
        assert says in refused(str(tmp_path / "s"), str(file), capsys=capsys)
    file.write_text('recipe = ["scalerl", "tiny"]\n')
    said = refused(str(tmp_path / "s"), str(file), "tiny", capsys=capsys)
    assert "name nothing beside it" in said


def test_commands_are_shell_lines_for_members_that_are_not_done(tmp_path, capsys):
    out = tmp_path / "my studies" / "it's one"
    words = ["study", "commands", str(out), "scalerl", "tiny", "--sweep", "schedule.k=1", "--steps",
             "20"]  # fmt: skip
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    first = shlex.split(lines[0])
    assert first[:2] == ["scalerl", "train"] and first[-2] == "--out"
    assert first[-1] == str(out / "runs" / "scalerl+tiny-s0") and "budget.steps=20" in first
    assert Recipe.load(first[2], overrides=first[3:-2]).budget.steps == 20
    assert main(["study", "commands", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    store = RunStore(out / "runs" / "scalerl+tiny-s0")
    recipe = Study(out).members[0].recipe
    store.write_recipe(recipe.to_toml())
    store.write_used_recipe(recipe.to_dict())
    assert main(["study", "commands", str(out)]) == 0
    assert "--resume" in capsys.readouterr().out.splitlines()[0]
    store.append(EventLine(step=20, event="end", reason="budget of 20 steps"))
    assert main(["study", "commands", str(out)]) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1 and "1 of 2 members are done" in told.err


def test_a_run_of_another_recipe_in_a_members_place_is_refused(tmp_path, capsys):
    out = tmp_path / "s"
    study = Study(out, ["scalerl", "tiny"], steps=20)
    study.write()
    store = RunStore(study.members[0].path)
    other = study.members[0].recipe.replace({"optimiser.lr": 1e-3, "placement.checkers": 2})
    store.write_recipe(other.to_toml())
    store.write_used_recipe(other.to_dict())
    assert "holds a run of another recipe (optimiser.lr is 0.001" in refused(
        str(out), capsys=capsys
    )


def test_the_date_that_a_member_has_set_for_its_prompts_is_no_other_recipe(tmp_path):
    study = Study(tmp_path / "s", ["scalerl", "tiny"], steps=20)
    study.write()
    member = study.members[0]
    store = RunStore(member.path)
    dated = member.recipe.replace({"model.chat_date": "2026-11-18"})
    store.write_recipe(dated.to_toml())
    store.write_used_recipe(dated.to_dict())
    check_same(member)


def test_hours_come_from_runs_beside_the_study(tmp_path, capsys):
    recipe = Recipe.load("scalerl", "tiny")
    store = RunStore(tmp_path / "earlier")
    store.write_recipe(recipe.to_toml())
    line = StepLine.from_dict(
        {"step": 10, "compute": {"samples": 5120, "minutes": 1.0, "device_hours": 0.03,
                                 "generated_tokens": 300_000, "flops": 1e12},
         "ledger": {"device_seconds": 90.0, "validation_seconds": 30.0}}
    )  # fmt: skip
    store.append(line)
    store.append(EvalLine.from_dict({"step": 0}))
    out = str(tmp_path / "s")
    found = planned(out, "scalerl", "tiny", "--seeds", "2", "--jobs", "2", capsys=capsys)
    # Three quarters of the minute trained 10 steps, the rest was one validation; 30 are to come.
    assert found["hours"] == pytest.approx(2 * (300 / 10 * 0.75 + 30 * 0.25) / 60 / 2)
    assert found["compute"]["flops"] == pytest.approx(2 * 30 * 1e12)
    assert found["compute"]["rate"] == "earlier"
    rarer = planned(out, "scalerl", "tiny", "validation.every=30", "--seeds", "2", "--jobs", "2",
                    capsys=capsys)  # fmt: skip
    assert rarer["hours"] == pytest.approx(2 * (300 / 10 * 0.75 + 10 * 0.25) / 60 / 2)
    other = planned(out, "scalerl", "tiny", "length.answer_tokens=7", capsys=capsys)
    assert other["hours"] is None, "a run of other lengths tells nothing"
    assert main(["study", out, "scalerl", "tiny", "--dry-run"]) == 0
    assert "rate: earlier" in capsys.readouterr().out


def test_a_budget_in_device_hours_is_screened_in_device_hours(tmp_path, capsys):
    found = planned(str(tmp_path / "s"), "scalerl", "--leave-one-out", capsys=capsys)
    assert found["budget"] == {"gpu_hours": 16000.0}
    assert found["screening"] == {"gpu_hours": 4000.0}
    assert found["compute"]["device_hours"] == 9 * 16000 and found["compute"]["steps"] is None


def test_a_plan_is_read_back_as_it_was_written():
    plan = StudyDefinition(("scalerl", "tiny"), sweep={"loss.name": ("dapo", "gspo")},
                           axis={"batch": ()}, learning_rate="sqrt", seeds=3,
                           screen=0.5)  # fmt: skip
    assert definition_from(tomllib.loads(plan.to_toml()), "test") == plan
    assert list(variants(plan)) == ["scalerl+tiny", "name-dapo", "name-gspo", "batch-256",
                                    "batch-1024"]  # fmt: skip


def test_a_study_without_a_recipe_is_refused_in_python():
    with pytest.raises(InputError, match="holds no study"):
        Study("nowhere")


def test_planning_and_reading_a_study_need_no_torch(tmp_path):
    code = (
        "import sys\nfrom scalerl import Study\n"
        f"study = Study({str(tmp_path / 's')!r}, ['scalerl', 'tiny'], leave_one_out=True)\n"
        "study.write(); study.table(); study.to_dict(); study.dry_run_dict(); study.commands()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == "False"


def test_old_names_of_a_study_work_and_warn(tmp_path):
    study = Study(tmp_path / "study", ["scalerl", "tiny"])
    with pytest.warns(DeprecationWarning, match="Study.plan is now Study.definition"):
        assert study.plan is study.definition
    with pytest.warns(DeprecationWarning, match="dry_run_dict"):
        assert study.plan_dict() == study.dry_run_dict()
    with pytest.warns(DeprecationWarning, match="Study.finding"):
        assert study.judged(study.members[0]) == study.finding(study.members[0])
