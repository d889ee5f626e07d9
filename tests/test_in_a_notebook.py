"""A run in a notebook: what it shows there, and that it shows nothing elsewhere."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scalerl import InputError, Recipe, RunEnd, train
from scalerl.notebook import PAUSE, NotebookView, default_listener, in_kernel
from scalerl.recipe.load import recipe_from
from scalerl.runs.compute import Compute
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.listener import Listener

HOSTILE = "</table><script>alert(1)</script>\"'&\u2028\n"
TINY = Recipe.load("scalerl", "tiny", overrides=["budget.steps=10"])


def parsed(html):
    found = ElementTree.fromstring(f"<div>{html}</div>")
    assert not [e for e in found.iter() if e.tag == "script"]
    assert not [e for e in found.iter() if e.get("style") or e.get("color")], "light and dark"
    return " ".join(" ".join(found.itertext()).split())


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def view():
    shown, clock = [], Clock()
    return NotebookView(shown.append, clock), shown, clock


def line(step, **more):
    return StepLine.from_dict({"step": step, "reward": 0.5, "pass_rate": 0.75,
                               "compute": {"steps": step}, **more})  # fmt: skip


def test_a_run_is_shown_in_one_place_that_is_renewed():
    page, shown, clock = view()
    page.begin(TINY, Path("runs/first"), None)
    page.evaluated(EvalLine.from_dict({"step": 0, "pass_rate": 0.25, "stderr": 0.01}), None)
    clock.now = 1.0
    page.step(line(5))
    text = parsed(shown[-1])
    for part in ("training scalerl+tiny into runs/first", "step 5 of 10 (50%)", "reward +0.500",
                 "0.250 ± 0.010"):  # fmt: skip
        assert part in text
    page.say("warning: slow")
    page.end("budget of 10 steps")
    assert "warning: slow" in parsed(shown[-1]) and "ended: budget of 10" in parsed(shown[-1])


def test_a_long_validation_is_shown_too():
    page, shown, clock = view()
    page.begin(TINY, Path("r"), 5)
    clock.now = 9.0
    page.validating(5, 3, 1, 256)
    assert "validating at step 5: 3 of 256 answers written, 1 checked" in parsed(shown[-1])


def test_many_steps_make_few_drawings():
    page, shown, clock = view()
    page.begin(TINY, Path("r"), None)
    for step in range(1, 101):
        page.step(line(step))
        clock.now += PAUSE / 10
    assert len(shown) <= 12


def test_a_forecast_says_whether_the_ceiling_is_known():
    from scalerl import fit, load_run
    from scalerl.curves.live import LiveForecast, forecast_numbers

    found = fit(load_run("example:paper-8b"))
    page, shown, _ = view()
    done = EvalLine.from_dict({"step": 3, "pass_rate": 0.5})
    page.evaluated(done, LiveForecast(found, None, forecast_numbers(found, None), None))
    assert f"ceiling {found.params['A']:.3f} [" in parsed(shown[-1])


def test_nothing_that_a_name_holds_breaks_out():
    page, shown, _ = view()
    hostile = TINY.replace({"name": HOSTILE, "description": HOSTILE})
    page.begin(hostile, Path(HOSTILE), None)
    page.say(HOSTILE)
    page.end(HOSTILE)
    for html in shown:
        parsed(html)
    parsed(hostile._repr_html_())
    parsed(RunEnd(HOSTILE, 3, Compute(), path=HOSTILE)._repr_html_())


def test_a_recipe_shows_what_is_special_about_it_and_everything_else():
    text = parsed(TINY._repr_html_())
    assert "Recipe scalerl+tiny" in text and "model.path tiny" in text
    for key in ("optimiser.betas", "loss.ratio_cap", "placement.patience"):
        assert key in text


def test_an_ended_run_shows_where_it_got_and_how_to_see_more():
    last = EvalLine.from_dict({"step": 3, "pass_rate": 0.5, "stderr": 0.1})
    end = RunEnd("budget of 3 steps", 3, Compute(), path="my runs/a", validation=last)
    text = parsed(end._repr_html_())
    assert "ended at step 3: budget of 3 steps" in text and "0.500 ± 0.100" in text
    assert "scalerl report 'my runs/a' -o 'my runs/a/report'" in text
    cut = RunEnd("interrupted", 3, Compute(), 2, path="a")
    assert "scalerl train --resume a" in parsed(cut._repr_html_())


def test_outside_a_notebook_nobody_listens_and_nothing_is_imported():
    assert not in_kernel() and type(default_listener()) is Listener
    code = "import sys, scalerl.training; sys.exit('IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0


@pytest.mark.parametrize("given", ["tiny", ["scalerl", "tiny"], ("scalerl", "tiny", "seed=1"),
                                   [{"name": "mine"}], TINY])  # fmt: skip
def test_a_recipe_may_be_given_by_name(given):
    assert isinstance(recipe_from(given), Recipe)


@pytest.mark.parametrize("given", [3, None, [3], [], ["seed=1"], "no-such-recipe"])
def test_what_is_no_recipe_is_explained_in_one_line(given, tmp_path):
    with pytest.raises(InputError) as caught:
        train(given, tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_names_given_to_recipe_itself_are_refused_with_what_to_write():
    with pytest.raises(InputError, match=r"write Recipe.load\('scalerl', 'tiny'\)"):
        Recipe("scalerl", "tiny")


CELL = """
from scalerl import train
small = ["scalerl", "tiny", "batch.prompts=2", "batch.generations=2", "validation.prompts=4",
         "validation.k=1", "task.options.prompts=50", "budget.steps=2"]
train(small, OUT)
"""


def test_train_in_a_real_kernel_starts_its_processes_and_shows_its_progress(tmp_path):
    pytest.importorskip("ipykernel", reason="needs ipykernel and nbclient")
    nbclient = pytest.importorskip("nbclient", reason="needs ipykernel and nbclient")
    import nbformat

    cell = nbformat.v4.new_code_cell(CELL.replace("OUT", repr(str(tmp_path / "run"))))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3").execute()
    pages = [o["data"]["text/html"] for o in cell.outputs if "text/html" in o.get("data", {})]
    assert "step 2 of 2 (100%)" in parsed(pages[0]) and "ended: budget of 2" in parsed(pages[0])
    assert "ended at step 2" in parsed(pages[-1])
