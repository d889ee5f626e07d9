"""Every tracker is the real library; what it wrote is read back by our own importers."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs
from scalerl.runs.compute import Compute
from scalerl.runs.lines import EpisodePlay, EvalLine, Play, SetScore, StepLine
from scalerl.runs.trackers import Trackers, open_trackers

RATES = [0.1, 0.25, 0.4, 0.5]
LOOK = SimpleNamespace(numbers={"forecast/A": 0.8, "forecast/identified": 0.0})


def compute(step):
    return Compute(device_hours=0.01 * step, generated_tokens=1000 * step, minutes=0.6 * step)


def stepped(step):
    return StepLine.from_dict({
        "step": step,
        "loss": -0.1,
        "reward": None,
        "pass_rate": 0.9,
        "prompts": ["a", "b"],
        "staleness": {"max": 2, "mean": 0.5, "histogram": {"0": 3}},
        "kl": 0.01,
        "metrics": {"capped": 0.2},
        "compute": compute(step).to_dict(),
        "ledger": {"generated_tokens": 1000 * step, "spent": {"train": 1.5}},
        "play": {"turns": 2.5, "tool_failures": 0.5},
    })  # fmt: skip


def evaluated(step, rate):
    hard = SetScore(pass_rate=0.01, stderr=0.01, n_prompts=30, k=4)
    return EvalLine(
        step=step,
        version=step,
        pass_rate=rate,
        stderr=0.02,
        n_prompts=200,
        k=4,
        unscored=0,
        truncated=0.0,
        tasks={"sums": rate},
        compute=compute(step),
        validation_hours=0.001,
        downstream={"hard": hard},
        play=Play.from_episodes([(EpisodePlay(3, 2, 1, 0, 0.5), "stop")]),
    )


def feed(trackers, steps=range(1, 5)):
    for step in steps:
        trackers.step(stepped(step))
        trackers.evaluated(evaluated(step, RATES[step - 1]), LOOK)


def assert_same_curve(run, rates=RATES):
    assert run.x_kind == "gpu_hours"
    np.testing.assert_allclose(run.score, rates, atol=1e-6)
    np.testing.assert_allclose(run.compute, 0.01 * np.arange(1, len(rates) + 1), rtol=1e-6)


def load_when_written(source, **options):
    """W&B's own process closes the file a moment after `finish` has returned."""
    deadline = time.monotonic() + 300
    while True:
        try:
            run = load_run(source, **options)
            if len(run) == len(RATES):
                return run
        except InputError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def said():
    return []


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    for name in ("WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_tensorboard_holds_the_curve_and_the_forecast(tmp_path, said):
    with open_trackers(["tensorboard"], tmp_path, "r", {}, resume=False, say=said.append) as t:
        feed(t)
    folder = tmp_path / "tensorboard"
    assert_same_curve(load_run(folder))
    assert_tags(folder, {"train/loss", "train/staleness/max", "train/ledger/spent/train",
                         "train/staleness/histogram/0", "train/kl", "train/metrics/capped",
                         "eval/downstream/hard/pass_rate", "forecast/A", "compute/device_hours",
                         "compute/minutes", "train/play/turns", "train/play/tool_failures",
                         "eval/play/turns"},
                absent={"train/reward", "train/step", "train/ledger/generated_tokens"})  # fmt: skip
    assert said == []


def assert_tags(folder, present, absent):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])
    assert present <= tags and not absent & tags


def test_tensorboard_forgets_the_steps_a_resumed_run_takes_again(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_trackers(["tensorboard"], tmp_path, "r", {}, resume=False) as t:
        feed(t)
    with open_trackers(["tensorboard"], tmp_path, "r", {}, resume=True) as t:
        feed(t, range(3, 5))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("eval/pass_rate")] == [1, 2, 3, 4]
    assert_same_curve(load_run(tmp_path / "tensorboard"))


def test_wandb_offline_holds_the_curve_and_resumes_under_the_same_id(tmp_path, offline, said):
    config = {"name": "mine", "batch": {"prompts": 8}}
    with open_trackers(["wandb"], tmp_path, "mine", config, resume=False, say=said.append) as t:
        feed(t)
    run = load_when_written(tmp_path / "wandb", group_by="batch/prompts")
    assert_same_curve(run)
    assert run.name == "mine" and run.group == "8"
    identity = (tmp_path / "wandb_id.txt").read_text().strip()
    with open_trackers(["wandb"], tmp_path, "mine", config, resume=True, say=said.append) as t:
        t.step(stepped(5))
    assert (tmp_path / "wandb_id.txt").read_text().strip() == identity
    logs = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert {log.name for log in logs} == {f"run-{identity}.wandb"}
    assert said == []


TRACKIO = """
import sys
import time
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_trackers import feed
from scalerl.runs.trackers import open_trackers

def forbidden(event, arguments):
    if event in ("socket.connect", "socket.bind", "subprocess.Popen"):
        raise SystemExit(f"{{event}}: trackio must stay on this machine, in this process")

sys.addaudithook(forbidden)
for steps, resume in ((range(1, 3), False), (range(3, 5), True)):
    with open_trackers(["trackio"], Path({out!r}), "mine", {{"seed": 1}}, resume=resume) as t:
        feed(t, steps)
"""


def test_trackio_stays_inside_the_run_directory_and_off_the_network(tmp_path, monkeypatch):
    """In a process of its own: trackio reads its directory when it is imported."""
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = TRACKIO.format(folder=str(Path(__file__).parent), out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    runs = load_runs(tmp_path / "trackio" / "scalerl.db")
    assert [run.name for run in runs] == ["mine"]
    assert_same_curve(runs[0])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_library_is_one_line_with_the_extra_to_install(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"pip install 'scalerl\[{name}\]'") as error:
        open_trackers([name], tmp_path / "run", "r", {}, resume=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_an_unknown_name_suggests_the_nearest(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'wandb'\?"):
        open_trackers(["tensorboard", "wandbb"], tmp_path, "r", {}, resume=False)
    with pytest.raises(InputError, match="there are tensorboard, trackio, wandb"):
        open_trackers(["mlflow"], tmp_path, "r", {}, resume=False)
    assert list(tmp_path.iterdir()) == []


OWN = """
import json

class Lines:
    def __init__(self, out, name, config, resume):
        self.file = (out / "lines.jsonl").open("a" if resume else "w")
        self.log(0, {"lr": config["optimiser"]["lr"]})

    def log(self, step, values):
        print(json.dumps({"step": step, **values}), file=self.file)

    def close(self):
        self.file.close()
"""


def test_a_tracker_of_ones_own_is_found_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "own_tracker.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"optimiser": {"lr": 0.5}}
    with open_trackers(["own_tracker:Lines"], tmp_path, "r", config, resume=False) as t:
        t.step(stepped(3))
    first, second = map(json.loads, (tmp_path / "lines.jsonl").read_text().splitlines())
    assert first == {"step": 0, "lr": 0.5}
    assert (second["step"], second["train/metrics/capped"]) == (3, 0.2)


def test_a_tracker_that_does_not_start_is_an_error_before_the_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="leave out --track tensorboard") as error:
        open_trackers(["tensorboard"], tmp_path / "file", "r", {}, resume=False)
    assert "\n" not in str(error.value)


class Flaky:
    """Works once."""

    def __init__(self):
        self.calls = 0
        self.closed = False

    def log(self, step, values):
        self.calls += 1
        if self.calls > 1:
            raise ConnectionError("the server\nis gone")

    def close(self):
        self.closed = True
        raise ConnectionError("still gone")


def test_a_tracker_that_breaks_is_switched_off_with_one_warning(tmp_path, said):
    good = open_trackers(["tensorboard"], tmp_path, "r", {}, resume=False)._trackers["tensorboard"]
    flaky = Flaky()
    trackers = Trackers({"flaky": flaky, "tensorboard": good}, said.append)
    feed(trackers)
    assert trackers.working == ("tensorboard",)
    trackers.close()
    trackers.close()
    assert said == ["warning: flaky failed and is switched off: the server is gone"]
    assert flaky.calls == 2 and flaky.closed
    assert_same_curve(load_run(tmp_path / "tensorboard"))


def test_without_a_forecast_a_validation_is_logged_all_the_same(tmp_path):
    with open_trackers(["tensorboard"], tmp_path, "r", {}, resume=False) as t:
        for step, rate in enumerate(RATES, 1):
            t.evaluated(evaluated(step, rate), None)
    assert_same_curve(load_run(tmp_path / "tensorboard"))


def test_asking_for_no_trackers_imports_none():
    code = (
        "import sys; from pathlib import Path; from scalerl.runs.trackers import open_trackers\n"
        "open_trackers([], Path('x'), 'r', {}, resume=False).close()\n"
        "print([m for m in ('tensorboard', 'wandb', 'trackio', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "[]", done.stderr
