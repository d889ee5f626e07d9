"""Real runs that go on from an earlier checkpoint, with other knobs, from Python and the command
line; on the virtual clock, so that they take seconds."""

import json
import shlex
import shutil
from collections import Counter

import pytest

from scalerl import InputError, Listener, Recipe, load_run, train
from scalerl.cli import main
from scalerl.training import recipe_of

SMALL = ["placement.backend=inline", "batch.prompts=2", "batch.generations=2", "budget.steps=6",
         "validation.prompts=4", "validation.k=1", "validation.every=2", "checkpoint.every=2",
         "checkpoint.keep=9", "schedule.k=8", "task.options.prompts=200"]  # fmt: skip
SIMULATED = ["placement.engine=simulated", "placement.trainer=simulated"]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class MessageReceived(Listener):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("a run") / "it's first"
    train(["scalerl", "tiny", *SMALL], out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "my runs" / finished.name)


def test_a_real_run_goes_on_from_an_earlier_checkpoint_with_other_knobs(run):
    before = (run / "steps.jsonl").read_text(), (run / "evals.jsonl").read_text()
    changed = recipe_of(run).replace(
        {"optimiser.lr": 1e-6, "schedule.k": 1, "batch.generations": 4, "budget.steps": 7}
    )
    ended = train(changed, run, resume=True, from_step=4)
    assert ended.steps == 7 and ended.path == str(run) and ended.validation.step == 7
    kept = run / "branches" / "1"
    assert ((kept / "steps.jsonl").read_text(), (kept / "evals.jsonl").read_text()) == before
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(1, 8))
    assert "".join(before[0].splitlines(keepends=True)[:4]) == "".join(
        (run / "steps.jsonl").read_text().splitlines(keepends=True)[:4]
    )
    assert max(s["staleness"]["max"] for s in steps[4:]) <= 1, "the new k holds at once"
    assert max(s["lr"] for s in steps[4:]) <= 1.001e-6 < steps[3]["lr"]
    assert load_run(run, x="compute/steps").breaks == (4.0,)
    assert load_run(kept, x="compute/steps").breaks == ()
    assert all(s["filtered"]["rollouts"] == 8 for s in steps[4:])
    asked = Counter(p for s in steps for p in s["prompts"])
    assert set(asked.values()) == {1}, "no prompt is lost or trained twice"
    (event,) = [e for e in lines(run / "events.jsonl") if e["event"] == "branch"]
    assert event["step"] == 4 and event["branch"] == "branches/1"
    assert {c["key"] for c in event["changes"]} == {
        "optimiser.lr", "schedule.k", "batch.generations", "budget.steps"}  # fmt: skip
    assert len(load_run(str(kept))) == 4 and len(load_run(str(run))) == 5


def test_the_branch_that_was_left_goes_on_as_well(run):
    train(recipe_of(run), run, resume=True, from_step=4)
    kept = run / "branches" / "1"
    longer = recipe_of(kept).replace({"budget.steps": 7})
    assert train(longer, kept, resume=True).steps == 7


def test_the_command_line_streams_it_and_prints_commands_that_work(run, capsys):
    words = ["train", "--resume", str(run), "--from", "4", "optimiser.lr=1e-6", "--json"]
    assert main(words) == 0
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = Counter(line["kind"] for line in out)
    assert kinds["step"] == 2 and kinds["validation"] == 1 and kinds["begin"] == 1
    # (Of two prompts with two rollouts each, a step may have nothing to learn from: a warning.)
    events = [line["event"] for line in out if line["kind"] == "event"]
    assert [e for e in events if e != "warning"] == ["branch", "resume", "note", "end"]
    assert out[-1]["kind"] == "end" and out[-1]["steps"] == 6 and out[-1]["signal"] is None
    assert out[-1]["validation"]["step"] == 6
    assert [line["step"] for line in out if line["kind"] == "step"] == [5, 6]
    assert main(["train", "--resume", str(run), "--plain"]) == 0
    said = capsys.readouterr().out.splitlines()[-1].partition(": ")[2]
    assert main(shlex.split(said)[1:]) == 2, "too few points for a report, but they were read"
    assert "has 4 points" in capsys.readouterr().err


def test_a_failure_is_the_last_line_of_the_stream(run, capsys):
    assert main(["train", "--resume", str(run), "seed=3", "--json"]) == 2
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in out] == ["failed"] and "seed" in out[0]["why"]


def test_a_hand_edited_recipe_is_noticed_when_the_run_goes_on(run):
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("steps = 6", "steps = 7"))
    heard = MessageReceived()
    assert train(recipe_of(run), run, resume=True, listener=heard).steps == 7
    assert any("budget.steps 6 → 7 (recipe.toml was edited)" in line for line in heard.lines)
    (event,) = [e for e in lines(run / "events.jsonl") if e["event"] == "branch"]
    assert event["changes"] == [
        {"key": "budget.steps", "old": "6", "new": "7", "by_hand": True}
    ] and "branch" not in event  # fmt: skip


@pytest.mark.parametrize(
    "change",
    ["schedule.k=1", "batch.prompts=5", "batch.prompts=1", "batch.generations=5",
     "sampling.max_prompt_tokens=40"],
)  # fmt: skip
@pytest.mark.parametrize("deterministic", [False, True])
def test_what_is_under_way_is_asked_again_by_the_new_knobs(tmp_path, change, deterministic):
    """On simulated parts: whatever was begun by the old knobs, nothing waits for ever, nothing is
    too old, and no prompt is trained on twice."""
    fixed = [f"placement.deterministic={str(deterministic).lower()}"]
    base = ["scalerl", "tiny", *SMALL, *SIMULATED, *fixed, "budget.steps=20"]
    out = tmp_path / "run"
    train(base, out)
    changed = Recipe.load(recipe_of(out).to_dict(), overrides=[change])
    assert train(changed, out, resume=True, from_step=10).steps == 20
    steps = lines(out / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(1, 21))
    assert max(s["staleness"]["max"] for s in steps[10:]) <= changed.schedule.k
    assert {len(s["prompts"]) for s in steps[10:]} == {changed.batch.prompts}
    assert max(Counter(p for s in steps for p in s["prompts"]).values()) == 1


def test_an_off_policy_phase_goes_on_with_other_lengths(tmp_path):
    out = tmp_path / "run"
    train(["scalerl", "tiny", *SMALL, *SIMULATED, "schedule.name=off-policy", "schedule.k=4",
           "budget.steps=12"], out)  # fmt: skip
    changed = recipe_of(out).replace({"batch.generations": 4})
    assert train(changed, out, resume=True, from_step=6).steps == 12


def test_from_step_without_resume_is_explained(tmp_path):
    with pytest.raises(InputError, match="resume=True"):
        train("tiny", tmp_path / "new", from_step=3)


def test_a_run_that_fails_says_what_goes_on_with_it(run, monkeypatch):
    """The path has a blank and a quote in it."""
    broken = recipe_of(run).replace({"placement.weights": "no.such:Channel", "budget.steps": 9})
    heard = MessageReceived()
    with pytest.raises(InputError):
        train(broken, run, resume=True, listener=heard)
    command = heard.lines[-1].partition(": ")[2]
    assert shlex.split(command) == ["scalerl", "train", "--resume", str(run)]
