"""Tables of the planner's and the adapters' pages, from committed results (docs/build.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    first, *others = ["| " + " | ".join(line) + " |" for line in [head, *rows]]
    return "\n".join([first, "|" + "---|" * len(head), *others])


def _lab_row(part: str, row: dict[str, Any]) -> list[str]:
    guess, seen, error = row["predicted"], row["measured"], row["error"]
    return [
        part,
        row["setting"],
        f"{guess['step_seconds']:.3f} / {seen['step_seconds']:.3f}",
        f"{100 * error['step_seconds']:+.0f} %",
        f"{guess['staleness']:.2f} / {seen['staleness']:.2f}",
        f"{100 * error['generator_wait']:+.0f}, {100 * error['trainer_wait']:+.0f}",
    ]


def planner_lab() -> str:
    """Predicted and measured steps of the lab runs, with the errors of each part."""
    rows, sums = [], []
    for part in ("first", "second", "third"):
        path = RESULTS / f"planner_lab_{part}.json"
        if not path.is_file():
            continue
        found = _result(path.stem)
        rows += [_lab_row(part, row) for row in found["rows"]]
        sums.append(_lab_summary(part, found["summary"]))
    models = RESULTS / "planner_models.json"
    if models.is_file():
        found = _result("planner_models")
        rows += [_lab_row(row["kind"], row) for row in found["rows"]]
        sums.append(_lab_summary("other models and tools", found["summary"]))
    head = ["part", "setting", "step, s: predicted / measured", "error", "staleness",
            "waits g, t: points"]  # fmt: skip
    return _markdown(head, rows) + "\n\n" + "; ".join(sums) + "."


def _lab_summary(part: str, summary: dict[str, float]) -> str:
    return (
        f"{part}: median error of a step {100 * summary['step_median']:.0f} %, worst "
        f"{100 * summary['step_seconds_worst']:.0f} %, staleness within "
        f"{summary['staleness_worst']:.2f}, waits within "
        f"{100 * max(summary['generator_wait_worst'], summary['trainer_wait_worst']):.0f} points"
        + (f", drift {100 * summary['drift']:+.0f} %" if "drift" in summary else "")
    )


def planner_public() -> str:
    """Public runs: published and predicted step times."""
    found = _result("planner_public")
    rows = []
    for case in found["cases"].values():
        low, high = case["interval_80"]
        middle = case["middle"]["step_seconds"]
        published = case["published"]
        off = 100 * (middle / published - 1)
        rows.append([
            case["about"], f"{published:,.4g}", f"{middle:,.4g} ({off:+.0f} %)",
            f"{case['median']:,.4g}", f"{low:,.4g} to {high:,.4g}",
            "yes" if case["inside"] else "no",
        ])  # fmt: skip
    head = ["run", "published, s", "at the middle rates", "median", "80 % interval", "holds"]
    update = found["verl_update"]
    return (
        f"{_markdown(head, rows)}\n\nverl's seconds of an update on 16, 32 and 64 GPUs: a + b / n "
        f"through the outer two predicts {update['predicted']:.0f} s for the middle one, which "
        f"took {update['published']:.0f} s ({100 * update['error']:+.0f} %); b / n alone is "
        f"{100 * update['linear_error']:+.0f} % off."
    )


def planner_paper() -> str:
    """The paper's step, one assumption after the other."""
    rows = [
        [row["with"], f"{row['step_seconds']:.0f}", f"{row['gpu_hours']:.2f}"]
        for row in _result("planner_public")["paper"]
    ]
    return _markdown(["each row adds to those above", "seconds of a step", "GPU-hours"], rows)


def planner_worlds() -> str:
    """A sentence: coverage in simulated worlds."""
    found = _result("planner_worlds")
    parts = []
    for name, words in (("step", "the seconds of a step"), ("days", "the days to a target")):
        shares = found["coverage"][name]
        held = ", ".join(f"{value:.2f}" for value in shares.values())
        levels = ", ".join(f"{100 * float(level):.0f}" for level in shares)
        parts.append(f"the {levels} % intervals of {words} hold in {held}")
    return f"In {found['worlds']} random worlds with known rates {' and '.join(parts)} of them."


def planner_cost() -> str:
    """CPU time of a simulation by devices and rollouts."""
    found = _result("planner_cost")
    rows = [
        [f"{r['generators']:,}", f"{r['rollouts_a_step']:,}", f"{r['steps']}",
         f"{r['cpu_seconds']:.1f}", f"{r['us_a_rollout']:.0f}"]
        for r in found["rows"]
    ]  # fmt: skip
    return _markdown(["generators", "rollouts a step", "steps", "CPU s", "µs a rollout"], rows)


def planner_best_k() -> str:
    """A sentence: the proposed k of the default task, and what running it showed."""
    if not (RESULTS / "planner_best_k.json").is_file():
        return "not run yet"
    found = _result("planner_best_k")
    said = f"The plan proposes k = {found['predicted']['proposed']}"
    if "measured" not in found:
        return said + "; not run yet."
    measured = found["measured"]
    each = ", ".join(
        f"{row['seconds_to_target']:.0f} s (k = {k}, {row['step_seconds']:.2f} s a step)"
        for k, row in measured["medians"].items()
    )
    return (
        f"{said}. Run beside its neighbours, three seeds each, the medians of the time to a pass "
        f"rate of {measured['target']:g} are {each}: k = {measured['first']} is first."
    )


def lora() -> str:
    """The default task by adapters of several ranks, beside all weights."""
    found = _result("lora")
    rows = []
    for name, r in found["variants"].items():
        full = name == "scalerl+tiny"
        rates = r["pass_rates"]
        rows.append([
            "all weights" if full else name.replace("-", " "), f"{r['trained_parameters']:,.0f}",
            f"{r['publish_bytes'] / 1e3:,.0f}", f"{1e3 * r['publish_seconds']:.2f}",
            f"{1e3 * r['proof_seconds']:.1f}", f"{r['optimiser_bytes'] / 1e3:,.0f}",
            f"{r['steps_per_second']:.2f}", f"{min(rates):.3f} to {max(rates):.3f}",
            "the reference" if full else r["words"].replace("scalerl+tiny", "all weights"),
        ])  # fmt: skip
    head = ["trained", "parameters", "publish, kB", "publish, ms", "proof, ms", "optimiser, kB",
            "steps a second", "pass rate at the end, seeds", "verdict"]  # fmt: skip
    return _markdown(head, rows)


def lora_smollm2() -> str:
    """A pretrained model by an adapter: sentences about the run, and its costs beside those of all
    weights."""
    r = _result("smollm2_lora")["result"]
    first, last = r["validation_pass_rate"][0], r["validation_pass_rate"][-1]
    said = (
        f"{r['steps']} steps of 16 answers took {r['seconds_of_run'] / 60:.0f} minutes on two busy "
        f"cores; the pass rate of eight held-out prompts went from {first:.2f} to {last:.2f}. The "
        f"generator proved its adapter {len(r['proofs'])} times. A checkpoint takes "
        f"{r['checkpoint_bytes'] / 1e6:.0f} MB, and PEFT's log-probs of it differ from those of "
        f"the merged export by {r['gap_to_peft']:.0e}."
    )
    rows = []
    for name, kind in (("all weights", "all weights"), ("rank 8", "adapter")):
        cost = r["costs"][kind]
        proof = f"{cost['proof_seconds']:.1f}" if kind == "adapter" else "–"
        rows.append([
            name, f"{cost['trained_parameters'] / 1e6:,.1f} M",
            f"{cost['publish_bytes'] / 1e6:,.1f}", f"{1e3 * cost['publish_seconds']:.0f}",
            f"{1e3 * cost['load_seconds']:.0f}", proof, f"{cost['optimiser_bytes'] / 1e6:,.0f}",
        ])  # fmt: skip
    head = ["SmolLM2-135M", "parameters", "publish, MB", "publish, CPU ms", "load, CPU ms",
            "proof, CPU s", "optimiser, MB"]  # fmt: skip
    return f"{said}\n\n{_markdown(head, rows)}"


def eval_generators() -> str:
    """A sentence: an evaluation on two generators beside one."""
    found = _result("eval_generators")
    one, two = (found["median"][n]["seconds"] for n in ("1", "2"))
    return (
        f"{found['prompts']:,} prompts × {found['k']} take {one:.1f} s on one generator and "
        f"{two:.1f} s on two: {found['ratio']:.2f} times as fast (medians of "
        f"{len(found['runs']['1'])})."
    )


TABLES = {
    f.__name__.replace("_", "-"): f
    for f in (
        planner_lab,
        planner_public,
        planner_paper,
        planner_worlds,
        planner_cost,
        planner_best_k,
        lora,
        lora_smollm2,
        eval_generators,
    )
}
