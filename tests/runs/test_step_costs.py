"""Steps that cost more as a run goes on: found, said, and plotted against what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scalerl.errors import InputError
from scalerl.runs import load_run, load_runs

N = np.arange(1.0, 61.0)
#: A step costs twice as much at the end as at the beginning.
RISING = 1 + N / 60
SCORE = np.round(0.2 + 0.5 * N / 90, 6)


def log(**columns: Any) -> dict[str, list[float]]:
    shared = {"step": N, "val_acc": SCORE}
    return {name: np.asarray(v, dtype=float).tolist() for name, v in (shared | columns).items()}


def notes(**options: Any) -> str:
    source = options.pop("source")
    return "; ".join(load_run(source, **options).notes)


def test_tokens_are_the_compute_where_steps_grow_and_it_is_said() -> None:
    table = log(num_tokens=np.cumsum(1000 * RISING))
    run = load_run(table)
    assert (run.x_name, run.x_kind) == ("num_tokens", "tokens")
    np.testing.assert_allclose(run.compute, table["num_tokens"])
    said = "; ".join(run.notes)
    assert "a step takes 1.7 times as many tokens in the last quarter of the run" in said
    assert "--x step fits on steps" in said
    assert run.conversions["steps"][1].tolist() == N.tolist()


def test_steps_that_are_asked_for_stay_and_the_option_is_named() -> None:
    table = log(num_tokens=np.cumsum(1000 * RISING))
    assert load_run(table, x="step").x_kind == "steps"
    assert "1.7 times as many tokens" in notes(source=table, x="step")
    assert "--x 'num_tokens' fits on tokens" in notes(source=table, x="step")


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_steady_costs_leave_the_steps(noise: float) -> None:
    rng = np.random.default_rng(0)
    each = 1000 * (1 + noise * rng.standard_normal(len(N)))
    for table in (log(num_tokens=np.cumsum(each)), log(step_time=each)):
        run = load_run(table)
        assert run.x_kind == "steps"
        assert "times as many" not in "; ".join(run.notes)


@pytest.mark.parametrize(
    ("name", "kind", "per_unit"),
    [("step_time", "hours", 3600), ("timing_s/step", "hours", 3600),
     ("perf/time_per_step", "hours", 3600), ("perf/total_num_tokens", "tokens", 1)],
)  # fmt: skip
def test_what_each_step_took_is_summed(name: str, kind: str, per_unit: float) -> None:
    run = load_run(log(**{name: 30 * RISING}))
    assert (run.x_name, run.x_kind) == (f"sum({name})", kind)
    np.testing.assert_allclose(run.compute, np.cumsum(30 * RISING) / per_unit)
    # The name that is shown may be given.
    again = load_run(log(**{name: 30 * RISING}), x=run.x_name)
    np.testing.assert_allclose(again.compute, run.compute)


def test_a_clock_is_only_named_because_it_goes_on_while_a_run_waits() -> None:
    table = log(_runtime=np.cumsum(30 * RISING))
    run = load_run(table)
    assert run.x_kind == "steps"
    assert "--x '_runtime' fits on hours" in "; ".join(run.notes)
    pause = log(_runtime=np.cumsum(np.where(N == 30, 90_000.0, 30.0)))
    assert "times as many" not in notes(source=pause)


def test_seconds_of_steps_make_gpu_hours_without_a_clock() -> None:
    table = log(step_time=np.full(60, 36.0))
    run = load_run(table, gpus=8)
    assert (run.x_name, run.x_kind) == ("sum(step_time)*8", "gpu_hours")
    np.testing.assert_allclose(run.compute, 8 * 36 * N / 3600)
    np.testing.assert_allclose(load_run(table, x=run.x_name).compute, run.compute)


def test_lines_every_ten_steps_and_steps_that_were_taken_again_count_once() -> None:
    rows = [s for s in range(60) if (s + 1) % 10 == 0]
    sparse = {name: [cells[i] for i in rows] for name, cells in log(step_time=36 + 0 * N).items()}
    run = load_run(sparse, x="sum(step_time)")
    np.testing.assert_allclose(run.compute, 36 * N[rows] / 3600)
    whole = log(step_time=36 + 0 * N)
    twice = {name: cells[:40] + cells[20:] for name, cells in whole.items()}
    run = load_run(twice, x="sum(step_time)")
    np.testing.assert_allclose(run.compute, 36 * N / 3600)


def test_runs_of_one_log_share_their_axis() -> None:
    grows, steady = np.cumsum(1000 * RISING), np.cumsum(np.full(60, 1000.0))
    both: dict[str, list[Any]] = {"run": ["a"] * 60 + ["b"] * 60}
    a, b = log(num_tokens=grows), log(num_tokens=steady)
    both |= {name: a[name] + b[name] for name in a}
    assert [run.x_kind for run in load_runs(both)] == ["tokens", "tokens"]
    # A run that does not say what its steps cost keeps all of them on steps.
    assert [r.x_kind for r in load_runs(a, log())] == ["steps", "steps"]


def test_a_sum_needs_steps_and_a_column() -> None:
    with pytest.raises(InputError, match="no column 'step_tim'"):
        load_run(log(step_time=RISING), x="sum(step_tim)")
    bare = {k: v for k, v in log(step_time=RISING).items() if k != "step"}
    with pytest.raises(InputError, match="needs a column of steps"):
        load_run(bare, x="sum(step_time)")
