"""Forces: their files, the studies that they make, the verdicts of a dose axis."""

import json
import math

import numpy as np
import pytest

from scalerl import InputError, Study
from scalerl.cli import main
from scalerl.study.dose_draws import (
    CellScores,
    LineDraws,
    break_verdict,
    contrast,
    dose_at,
    line_verdict,
    positions,
)
from scalerl.study.dose_law import CellOutcome, law_verdict
from scalerl.study.force import find_force, force_names, parse_force

SMALL = """
question = "how?"
recipe = ["scalerl", "tiny"]
dose = "schedule.k"
values = [1, 2, 8]
seeds = 2
seeds_at = { "8" = 3 }

[lines.cispo]
"loss.name" = "cispo"

[lines.dapo]
"loss.name" = "dapo"
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def refused(*words, capsys):
    assert main(["study", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("scalerl: ")
    return said


@pytest.mark.parametrize("name", force_names())
def test_every_force_of_the_package_is_a_study_whose_cells_differ(name, tmp_path):
    study = Study(tmp_path / "s", forces=name)
    force = study.force
    assert list(study.variants) == [cell.name for cell in force.cells()]
    assert study.reference == force.cells()[0].name
    made = {json.dumps(r.replace({"name": "x"}).to_dict()) for r in study.variants.values()}
    assert len(made) == len(study.variants)
    assert force.question.endswith("?") and force.claim and force.source


def test_a_file_of_ones_own_makes_lines_times_doses_with_more_seeds_where_asked(small, tmp_path):
    study = Study(tmp_path / "s", forces=small)
    names = [m.name for m in study.members]
    assert len(names) == 2 * (2 + 2 + 3) and "dapo@8-s2" in names and "dapo@2-s2" not in names
    assert study.variants["dapo@8"].schedule.k == 8 and study.variants["dapo@8"].loss.name == "dapo"
    assert study.definition.screen == 1.0


def test_a_study_goes_on_without_its_force_file_and_takes_more_seeds(small, tmp_path):
    Study(tmp_path / "s", forces=small).write()
    (tmp_path / "small.toml").unlink()
    again = Study(tmp_path / "s")
    assert len(again.members) == 14 and again.force.question == "how?"
    assert len(Study(tmp_path / "s", seeds=4).members) == 6 * 4
    with pytest.raises(InputError, match="it is of the force"):
        Study(tmp_path / "s", forces="lag")


def test_seeds_and_variants_of_the_command_line_go_before_the_file(small, tmp_path, capsys):
    words = [str(tmp_path / "s"), "--forces", small, "--seeds", "1", "--variants", "dapo@8"]
    assert main(["study", *words, "--dry-run", "--json"]) == 0
    members = [m["name"] for m in json.loads(capsys.readouterr().out)["members"]]
    assert members == ["cispo@1-s0", "dapo@8-s0"]


@pytest.mark.parametrize("words", [["--forces"], ["s", "--forces", "lagg"], ["s", "--forces"]])
def test_without_a_name_or_with_a_wrong_one_the_forces_are_listed(words, capsys):
    said = refused(*words, capsys=capsys)
    assert "lag" in said and ".toml" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("values = [1, 2, 8]", "values = [1, 8, 2]"), "not in order"),
        (("values = [1, 2, 8]", "values = [1]"), "two doses or more"),
        (("values = [1, 2, 8]", "values = [0, 2, 8]"), "schedule.k"),
        (('dose = "schedule.k"', 'dose = "lag"'), "no key of a recipe"),
        (("seeds = 2", "seeds = 0"), "give 1 or more"),
        (('"8" = 3', '"7" = 3'), "no dose 7"),
        (("seeds = 2", "sedes = 2"), "did you mean seeds"),
        (("seeds = 2", 'law = { over = "schedule.k", slope = -1 }'), "sets no schedule.k"),
        (("seeds = 2", 'asked = "all"'), "choose from"),
        (("[lines.dapo]", "[lines.'a b']"), "letters"),
    ],
)
def test_bad_files_and_doses_that_cannot_be_combined_are_one_line(change, said, tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(SMALL.replace('seeds_at = { "8" = 3 }', "").replace(*change)
                    if "7" not in change[1] else SMALL.replace(*change))  # fmt: skip
    assert said in refused(str(tmp_path / "s"), "--forces", str(path), capsys=capsys)


def test_a_force_is_not_mixed_with_other_variants_or_recipes(small, tmp_path, capsys):
    home = str(tmp_path / "s")
    assert "leave_one_out" in refused(home, "--forces", small, "--leave-one-out", capsys=capsys)
    assert "recipe of its own" in refused(home, "scalerl", "--forces", small, capsys=capsys)


# -- verdicts -------------------------------------------------------------------------------------


def line(levels, unstable=(), doses=(1.0, 2.0, 4.0, 8.0), runs=3, known=None):
    """A line whose cells have runs around these levels."""
    off = np.linspace(-0.008, 0.008, runs)
    unstable = unstable or [0] * len(levels)
    cells = [
        CellScores(tuple(level + off[: runs - u]) if runs > u else (), u)
        for level, u in zip(levels, unstable, strict=True)
    ]
    return LineDraws(doses, tuple(cells), known or (0.0,) * len(levels))


def test_a_line_that_falls_gets_the_dose_between_the_last_level_one_and_the_first_fallen_one():
    said = line_verdict(line([0.8, 0.8, 0.7, 0.6]))
    assert said.verdict == "falls" and said.p_falls > 0.97
    low, middle, high = said.dose
    assert 1.0 < low < middle < high <= 4.0 and 2.0 < middle < 4.0


def test_a_line_that_stays_holds_and_few_or_scattered_runs_are_undecided():
    assert line_verdict(line([0.8, 0.8, 0.8, 0.805])).verdict == "holds"
    assert line_verdict(line([0.8, 0.8, 0.8, 0.785])).verdict == "undecided"
    assert line_verdict(line([0.8, 0.79], doses=(1.0, 2.0), runs=1)).verdict == "undecided"


def test_doses_at_which_runs_collapse_count_as_fallen():
    said = line_verdict(line([0.8, 0.8, 0.8, 0.8], unstable=[0, 0, 3, 3]))
    assert said.verdict == "falls" and 2.0 < said.dose[1] < 4.0 and said.fall is None
    one = line_verdict(line([0.8, 0.8, 0.8, 0.8], unstable=[0, 0, 0, 1]))
    assert one.verdict == "undecided", "one of three is neither most nor none"


def test_falls_are_counted_from_what_is_known_by_construction():
    known = (1.0, 1.0, 0.9, 0.8)
    assert line_verdict(line([0.9, 0.9, 0.8, 0.705], known=known)).verdict == "holds"
    assert line_verdict(line([0.9, 0.9, 0.8, 0.705])).verdict == "falls"


def test_the_dose_at_which_half_of_the_runs_break():
    doses = (1.0, 2.0, 4.0, 8.0, 16.0)
    said = break_verdict([(0, 3), (0, 3), (0, 3), (3, 3), (3, 3)], doses)
    assert said.verdict == "falls" and 4.0 < said.dose[1] < 8.0
    assert break_verdict([(0, 3)] * 5, doses).verdict != "falls"


def test_places_and_doses_are_inverse_also_with_a_dose_of_none():
    doses = (0.0, 0.1, 0.2, 0.8)
    assert [dose_at(p, doses) for p in positions(doses)] == pytest.approx(doses)
    assert dose_at(math.inf, doses) == math.inf


def test_two_cells_are_higher_lower_alike_or_undecided():
    many = line([0.8, 0.8, 0.77, 0.7], runs=6)
    levels, cells = many.levels, many.cells

    def against(i):
        return contrast(levels[:, i], levels[:, 0], (cells[i], cells[0])).verdict

    assert [against(i) for i in (1, 3)] == ["no difference", "lower"]
    lost = line([0.8, 0.8], unstable=[0, 3], doses=(1.0, 2.0))
    found = contrast(lost.levels[:, 1], lost.levels[:, 0], (lost.cells[1], lost.cells[0]))
    assert found.difference is None and found.p_less_stable > 0.97


@pytest.mark.parametrize(("true", "said"), [(-1.0, "holds"), (0.0, "does not hold")])
def test_the_slope_of_a_law_is_found_by_where_runs_break(true, said):
    outcomes = [
        CellOutcome(k, lr, 3, 3 if math.log(lr) > math.log(8) + true * math.log(k / 4) else 0)
        for k in (1, 2, 4, 8, 16)
        for lr in (1, 2, 4, 8, 16, 32, 64)
    ]
    law = law_verdict(outcomes, "schedule.k", -1.0)
    assert law.verdict == said
    assert law.slope[0] < true < law.slope[2] and law.slope[2] - law.slope[0] < 0.8


# -- planted truth --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated():
    from forces_truth import dose_study

    return dose_study(0)


def test_planted_thresholds_are_found_by_simulated_runs(simulated):
    truths, found = simulated
    for each in found.lines:
        truth = truths[each.name].threshold(each.kind)
        low, _, high = each.verdict.at
        assert low <= truth <= high, each.name
        assert each.verdict.verdict != ("holds" if math.isfinite(truth) else "falls")
    assert {each.name for each in found.lines if each.verdict.verdict == "falls"} == {
        "slow", "fast", "collapses"
    }  # fmt: skip


def test_a_study_of_some_cells_is_judged_by_the_doses_that_it_has():

    from forces_truth import Truth, findings, force_text
    from scalerl.study.dose_results import force_results

    force = parse_force(force_text(["[lines.a]", "[lines.b]"], (1.0, 2.0, 4.0, 8.0)), "simulated")
    truths = {"a": Truth(begins=0.0, rate=0.6), "b": Truth(begins=0.0, rate=0.6)}
    every = list(findings(force, truths, np.random.default_rng(3)))
    kept = ("a@1", "a@8", "b@8", "b@4")

    some = force_results(force, [f for f in every if f.member.variant in kept])
    a, b = some.lines
    assert a.verdict.verdict == "falls" and 1.0 < a.verdict.dose[1] < 8.0
    assert [c.place for c in a.cells] == [0.0, 1.0] and b.cells[0].place == pytest.approx(2 / 3)
    assert b.verdict is None and "first dose" in b.words
    assert [(e.variant, e.other) for e in some.between] == [("b@8", "a@8")]


def test_report_and_table_show_every_cell_and_verdict(simulated, tmp_path):
    from scalerl.report.dose_words import force_text
    from scalerl.report.force_page import force_files

    _, found = simulated
    text = force_text(found)
    assert max(map(len, text.splitlines())) <= 80
    files = force_files(found, ["a <b> became unstable"], "scalerl study s --forces simulated")
    page, twin = files["report.html"].decode(), files["report.md"].decode()
    for each in found.lines:
        assert each.words in " ".join(text.split()) and each.words in page and each.name in twin
    assert "a &lt;b&gt; became" in page and len(files["doses.svg"]) > 5000
    assert json.loads(files["report.json"])["force"]["lines"][0]["cells"][0]["runs"] == 3


def test_a_dose_law_wants_a_key_of_each_line():
    with pytest.raises(InputError, match="line cispo sets no"):
        parse_force(SMALL + '\n[law]\nover = "schedule.k"\nslope = -1\n', "x")
    assert find_force("lag-rate").law.slope == -1.0


def test_a_run_is_not_unstable_for_a_cause_alone(simulated, tmp_path):
    from dataclasses import replace

    from forces_truth import Truth, findings, force_text
    from scalerl.study.dose_results import outcome
    from scalerl.study.stability import Stability

    force = parse_force(force_text(["[lines.a]"], (1.0, 2.0)), "simulated")
    one = next(findings(force, {"a": Truth()}, np.random.default_rng(1)))
    (tmp_path / "steps.jsonl").write_text(
        "".join(
            json.dumps({"step": i, "loss": 0.0, "grad_norm": 1.0, "ess": 0.2, "truncated": 0.3})
            + "\n"
            for i in range(1, 41)
        )
    )
    cause = Stability("unstable", "ratio", 20, "low")
    found = replace(one, stability=cause, member=replace(one.member, path=tmp_path))
    assert outcome(found).state == "stable"
    lost = [replace(e, pass_rate=0.1) if e.step > 80 else e for e in found.evals]
    assert outcome(replace(found, evals=lost)).rule == "collapse"
