"""Fill the docs from the code and from committed benchmark results.

python docs/build.py            write
python docs/build.py --check    exit 1 if anything is out of date

Text between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced by the table (or code) NAME;
docs/reference/cli.md, python.md and openapi.json are written whole.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import json
import re
import runpy
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import findings_tables
import planner_tables
from reference_lists import recipe_keys, recipe_presets, run_record

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def markdown(head: list[str], rows: list[list[str]]) -> str:
    first, *others = ["| " + " | ".join(line) + " |" for line in [head, *rows]]
    return "\n".join([first, "|" + "---|" * len(head), *others])


def rivals() -> str:
    """What we measured beside the paper's procedure and TRL, a row a figure."""
    healthy = {
        r["method"]: r for r in result("calibration")["by_class"] if r["run_class"] == "healthy"
    }
    paper, ours = healthy["paper"], healthy["scalerl"]
    fits = result("speed")["against_paper"]
    rows = [
        ["90 % interval holds the outcome, other projects' healthy runs", "the paper's procedure",
         f"{paper['in90']:.2f}", f"{ours['in90']:.2f}"],
        ["CRPS of that forecast (smaller is better)", "the paper's procedure",
         f"{paper['crps']:.4f}", f"{ours['crps']:.4f}"],
        ["a fit of 100 points", "the paper's procedure", f"{fits['paper']['median']:.1f} s",
         f"{1e3 * fits['ours']['median']:.0f} ms"],
    ]  # fmt: skip
    names = {"fixed": "answers of equal length", "ragged": "answers of unequal length",
             "smollm2": "SmolLM2-135M"}  # fmt: skip
    trl = result("against_trl")
    for case, name in names.items():
        best = min(s["seconds"] for side, s in trl[case].items() if side.startswith("TRL"))
        mine = trl[case]["scalerl train"]["seconds"]
        rows.append([f"a training step, {name}", "TRL at its best", f"{best:.2f} s",
                     f"{mine:.2f} s"])  # fmt: skip
    return markdown(["figure", "rival", "rival's", "scalerl's"], rows)


def calibration_classes() -> str:
    """Our forecasts by class, with priors learned without the source of each curve."""
    rows = [
        [
            r["run_class"],
            f"{r['runs']} / {r['tasks']}",
            f"{r['crps']:.4f} {_between(r['intervals']['crps'], 4)}",
            f"{r['skill']:+.2f} {_between(r['intervals']['skill'], 2)}",
            f"{r['in90']:.2f} {_between(r['intervals']['in90'], 2)}",
            f"{r['width90']:.3f}",
            f"{r['identified']:.2f}",
        ]
        for r in result("calibration")["by_class"]
        if r["method"] == "scalerl"
    ]
    head = ["class", "runs / tasks", "CRPS", "skill", "90 % holds", "width", "identified"]
    return markdown(head, rows)


def _between(ends: list[float], digits: int) -> str:
    return f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"


def calibration_rivals() -> str:
    """CRPS of every method by class, and how often its 90 % interval holds."""
    rows = result("calibration")["by_class"]
    kinds = list(dict.fromkeys(r["run_class"] for r in rows))
    by = {(r["method"], r["run_class"]): r for r in rows}
    body = [
        [m, *(f"{by[m, k]['crps']:.4f} ({by[m, k]['in90']:.2f})" for k in kinds)]
        for m in dict.fromkeys(r["method"] for r in rows)
    ]
    return markdown(["CRPS (90 % holds)", *kinds], body)


#: Classes of runs on the page about rivals.
RIVAL_CLASSES = ["healthy", "flat", "declining", "training", "control"]


def _rival_rows() -> dict[tuple[str, str], dict[str, Any]]:
    return {(r["method"], r["run_class"]): r for r in result("rivals")["by_class"]}


def rivals_scores() -> str:
    """CRPS of every method by class, and how often its 50 % and 90 % intervals hold."""
    by = _rival_rows()
    body = [
        [m, *(f"{r['crps']:.4f} ({r['cover50']:.2f}, {r['cover90']:.2f})"
              for k in RIVAL_CLASSES for r in (by[m, k],))]
        for m in dict.fromkeys(m for m, _ in by)
    ]  # fmt: skip
    counts = [f"{k}, {r['runs']} / {r['tasks']}" for k in RIVAL_CLASSES
              for r in (by["scalerl", k],)]  # fmt: skip
    return markdown(["CRPS (50 %, 90 % holds)", *counts], body)


def rivals_behind() -> str:
    """CRPS minus ours, with intervals from resampling runs and sources."""
    by = _rival_rows()

    def cell(r: dict[str, Any]) -> str:
        ends = [[f"{v:+.4f}" for v in r[f"intervals_by_{group}"]["behind"]]
                for group in ("runs", "sources")]  # fmt: skip
        return f"{r['behind']:+.4f} [{', '.join(ends[0])}] [{', '.join(ends[1])}]"

    names = [m for m in dict.fromkeys(m for m, _ in by) if m != "scalerl"]
    body = [[m, *(cell(by[m, k]) for k in RIVAL_CLASSES)] for m in names]
    return markdown(["CRPS minus ours", *RIVAL_CLASSES], body)


def rivals_where() -> str:
    """CRPS by situation, with the share of outcomes below the median."""
    rows = result("rivals")["by_situation"]
    by = {(r["method"], r["situation"]): r for r in rows}
    kinds = list(dict.fromkeys(r["situation"] for r in rows))
    body = [
        [m, *(f"{by[m, k]['crps']:.4f} ({by[m, k]['below']:.2f})" for k in kinds)]
        for m in dict.fromkeys(r["method"] for r in rows)
    ]
    counts = [f"{k}: {by['scalerl', k]['tasks']}" for k in kinds]
    return markdown(["CRPS (outcome below the median)", *counts], body)


def calibration_shares() -> str:
    """How often the 90 % interval holds by class and by the share of the run that was seen."""
    rows = result("calibration")["by_share"]
    shares = list(dict.fromkeys((r["from"], r["to"]) for r in rows))
    by = {(r["run_class"], r["from"]): r for r in rows}
    body = [
        [k, *(f"{by[k, low]['in90']:.2f} ({by[k, low]['tasks']})" for low, _ in shares)]
        for k in dict.fromkeys(r["run_class"] for r in rows)
    ]
    return markdown(["90 % holds (tasks)", *(f"{a:g}–{b:g} seen" for a, b in shares)], body)


def calibration_ceilings() -> str:
    """A sentence: known ceilings, with priors learned without the source of the run."""
    parts = []
    for end, when in ((False, "at random shares from 40 % on"), (True, "at the end")):
        rows = [r for r in result("calibration")["ceilings"] if (r["share"] == 1.0) == end]
        sure = [r for r in rows if r["identified"]]
        parts.append(
            f"{when}, the 90 % interval holds the truth in {sum(r['holds'] for r in rows)} of "
            f"{len(rows)} fits, and in {sum(r['holds'] for r in sure)} of the {len(sure)} in which "
            "the ceiling is called identified"
        )
    return "; ".join(parts)


def learned_constants() -> str:
    """The learned constants, and the range in which they lie when a source is left out."""
    found = result("learn_priors")
    rows = []
    for kind in ("both", "validation", "training"):
        for name, value in found["priors"][kind].items():
            if isinstance(value, list):
                continue
            folds = [fold[kind][name] for fold in found["without"].values()]
            which = "" if kind == "both" else kind
            rows.append([f"`{name}`", which, f"{value:g}", f"{min(folds):g} to {max(folds):g}"])
    return markdown(["constant", "kind of score", "value", "with a source left out"], rows)


def backtest_least() -> str:
    from scalerl.curves.backtest import MIN_RUN

    return str(MIN_RUN)


def backtest_methods() -> str:
    from scalerl.curves.backtest import METHODS

    *names, last = METHODS
    return f"{', '.join(names)} and {last}"


def backtest_alarms() -> str:
    """A sentence: in how many runs the alarm was ever on."""
    ever = {r["run_class"]: r["runs_ever"] for r in result("backtest")["alarms"]}
    return ", ".join(f"{100 * share:.0f} % ({kind})" for kind, share in ever.items())


def hazard_signs() -> str:
    """A sentence: how often any sign was on before a fall, with it, and without one."""
    (one,) = [r for r in result("hazard")["signs"] if r["sign"] == "any"]
    return (
        f"a sign was on before {one['hits']} of {one['falls']} falls (within four evaluations), "
        f"together with {one['with_the_fall']}, and at {one['false']} of {one['calm_looks']:,} "
        "looks without a fall."
    )


def breaks() -> str:
    """Sentences: false and true warnings of a jump, and forecasts with an event and without."""
    r = result("breaks")
    calm = [row for row in r["suspected"] if row["class"] in ("healthy", "flat")]
    fired, looks = (sum(row[key] for row in calm) for key in ("suspected", "looks"))
    found = "; ".join(
        f"{row['found']} of {row['curves']} of {row['height']:g}" for row in r["found"]
    )
    event, no_event, plain = r["forecasts"]
    return (
        f"On real curves without a change the warning came at {fired} of {looks} looks at healthy "
        f"and flat runs; of jumps put into healthy curves it found {found}. Forecasts of the end "
        f"of curves with a jump of 0.15 had a mean error of {event['mean_error']:.3f} and a 90 % "
        f"interval {event['width90']:.2f} wide with the event, {no_event['mean_error']:.3f} and "
        f"{no_event['width90']:.2f} without; the same curves without a jump "
        f"{plain['mean_error']:.3f} and {plain['width90']:.2f}."
    )


def ceilings() -> str:
    """A sentence: how often the interval holds the truth at each share of the run."""
    rows = result("ceilings")["summary"]
    holds = ", ".join(f"{r['holds']}" for r in rows)
    known = ", ".join(f"{r['identified_and_holds']} of {r['identified']}" for r in rows)
    at = ", ".join(f"{100 * r['fraction']:g}" for r in rows)
    return (
        f"fitted at {at} % of the run, the 90 % interval holds the truth in {holds} of "
        f"{rows[0]['runs']} runs; where the ceiling is identified, in {known}."
    )


def backtest_disturbed() -> str:
    """A sentence: what changes, and between what skill and coverage lie."""
    rows = result("backtest")["disturbed"]
    skills, holds = [r["skill"] for r in rows], [r["cover90"] for r in rows]
    return (
        f"With a change ({'; '.join(r['change'] for r in rows)}), skill is {min(skills):+.2f} to "
        f"{max(skills):+.2f}, and 90 % intervals hold in {min(holds):.2f} to {max(holds):.2f}."
    )


def synthetic_coverage() -> str:
    """A sentence: coverage and width of the interval of A by the end of the window."""
    rows = result("synthetic")["coverage"]
    ends, holds, widths = (", ".join(format(r[key], form) for r in rows)
                           for key, form in (("window", "g"), ("cover90", ".2f"),
                                             ("width90", ".2f")))  # fmt: skip
    return (
        f"where the window ends at {ends} C_mid, the 90 % interval of A holds in {holds} of the "
        f"runs, with mean widths of {widths}."
    )


def synthetic_identification() -> str:
    rows = [
        [f"{r['window']:g} C_mid", f"{r['low']:.3f} to {r['high']:.3f}", f"{r['identified']:.2f}"]
        for r in result("synthetic")["identification"]
    ]
    return markdown(["window ends at", "mean 95 % interval of A (truth 0.645)", "identified"], rows)


def synthetic_ranking() -> str:
    rows = [
        [
            f"{r['window']:g} C_mid",
            f"{r['right']:.2f} / {r['wrong']:.2f}",
            f"{r['false']:.2f}",
            f"{r['paper_right']:.2f} / {r['paper_wrong']:.2f}",
            f"{r['paper_false']:.2f}",
        ]
        for r in result("synthetic")["ranking_recipes"]
    ]
    head = [
        "windows end at",
        "ours: right / wrong (ΔA .03)",
        "decides (ΔA 0)",
        "paper's rule: right / wrong",
        "decides",
    ]
    return markdown(head, rows)


def synthetic_high() -> str:
    """A sentence: equal pairs that get a winner, wrong winners, and how often the largest
    difference is found where the run with the lower ceiling is the short one."""
    rows = result("synthetic")["high_ceilings"]
    equal = [r for r in rows if r["long_A"] == r["short_A"]]
    above = [r for r in rows if r["long_A"] > r["short_A"]]
    below = [r for r in rows if r["long_A"] < r["short_A"]]
    decided = max(r["long_higher"] + r["short_higher"] + r["faster"] for r in equal)
    wrong = max([r["short_higher"] + r["faster"] for r in above]
                + [r["long_higher"] + r["faster"] for r in below])  # fmt: skip
    most = max(r["long_A"] - r["short_A"] for r in above)
    seldom = max(r["long_higher"] for r in above
                 if r["short_window"] <= 1 and r["long_A"] - r["short_A"] == most)  # fmt: skip
    return (
        f"equal ones get a winner in at most {decided:.2f} of the pairs, unequal ones the wrong "
        f"winner in {wrong:.2f}; a difference of {most:.1f} is found in only {seldom:.2f} of the "
        "pairs in which the run with the lower ceiling ends at C_mid or before"
    )


def verdicts() -> str:
    """Every rule over all looks, with intervals."""
    rows = [
        [kind, r["rule"], f"{r['looks']:,}"]
        + [_with_interval(r, k) for k in ("decided", "wrong", "withdrawn", "reversed")]
        for kind in ("real", "simulated")
        for r in result("verdicts")[kind]["all"]
    ]
    return markdown(["pairs", "rule", "looks", "decided", "wrong", "withdrawn", "reversed"], rows)


def verdicts_by_share() -> str:
    """Decided, wrong and withdrawn by share of the compute, one column a rule."""
    rows = []
    for kind in ("real", "simulated"):
        groups: dict[tuple[float, float], dict[str, Any]] = {}
        for r in result("verdicts")[kind]["by_share"]:
            groups.setdefault((r["from"], r["to"]), {})[r["rule"]] = r
        for (low, high), rules in groups.items():
            cells = [_decided_wrong_withdrawn(r) for r in rules.values()]
            rows.append([kind, f"{low:g} to {high:g}", f"{rules['points']['looks']:,}", *cells])
    return markdown(["pairs", "share", "looks", "unknown budget", "known budget", "points"], rows)


def _decided_wrong_withdrawn(row: dict[str, Any]) -> str:
    if not row["n_decided"]:
        return "0 %"
    return " / ".join(f"{100 * row[k]:.1f} %" for k in ("decided", "wrong", "withdrawn"))


def verdicts_at_the_end() -> str:
    """How many pairs are decided with all points, as a sentence."""
    said = []
    for kind in ("real", "simulated"):
        rows = {r["rule"]: r for r in result("verdicts")[kind]["end"]}
        counts = ", ".join(f"{rows[rule]['n_decided']} ({rule})" for rule in rows)
        said.append(f"of {rows['points']['pairs']} {kind} pairs {counts}")
    return f"With all points, {'; '.join(said)} are decided."


def verdicts_survival() -> str:
    rows = [
        [
            kind,
            f"{r['from']:g} to {r['to']:g}",
            f"{r['looks']}",
            f"{r['said']:.2f}",
            f"{r['came']:.2f}",
        ]
        for kind in ("real", "simulated")
        for r in result("verdicts")[kind]["survives"]
    ]
    return markdown(["pairs", "`survives`", "looks", "mean", "still held at the end"], rows)


def _with_interval(row: dict[str, Any], key: str) -> str:
    """A share in percent with its interval; empty where nothing was decided."""
    if row[key] is None:
        return ""
    if row[f"{key}_interval"] is None:
        return f"{100 * row[key]:.1f} %"
    low, high = row[f"{key}_interval"]
    return f"{100 * row[key]:.1f} % ({100 * low:.0f}–{100 * high:.0f})"


def race() -> str:
    found = result("race")
    rows = [
        [
            name,
            f"{r['compute']:.2f}",
            f"{r['decided']:.2f}",
            f"{100 * r['wrong']:.1f} %",
            f"{r['collapses_missed']:.2f}",
            f"{r['best_thrown_away']:.2f}",
            f"{r['best_not_named']:.2f}",
        ]
        for name, r in found["methods"].items()
    ]
    count = f"{found['studies']} studies, {found['methods']['race']['comparisons']} comparisons"
    head = [
        count,
        "compute, of all budgets",
        "decided",
        "wrong",
        "collapses not seen",
        "best thrown away",
        "best not named",
    ]
    return markdown(head, rows)


def replication(name: str) -> str:
    """A study of the replication: each variant's ceiling, its speed, the verdict."""
    found = result("replication")["studies"].get(name)
    if found is None:
        return "*Not run yet.*"
    ratio = {}
    for knob in found["knobs"]:
        if knob["speed"] is not None:
            each = knob["speed"]["compute_ratio"]
            low, high = each["interval"]
            ratio[knob["variant"]] = f"x{each['median']:.2f} [{low:.2f}, {high:.2f}]"
    differ = len({row["true_A"] for row in found["table"]} - {None}) > 1
    rows = []
    for row in found["table"]:
        a = row["intervals"]["A"]
        rows.append(
            [
                f"`{row['variant']}`",
                *([str(row["seeds"])] if differ else []),
                "" if a is None else f"{row['A']:.3f} [{a[0]:.3f}, {a[1]:.3f}]",
                *([f"{row['true_A']:.3f}"] if differ else []),
                ratio.get(row["variant"], ""),
                _short_verdict(row, found["table"][0]["variant"]),
            ]
        )
    if name == "heads":
        return _short_study(found)
    head = ["variant", *(["seeds", "ceiling A", "by construction"] if differ else ["ceiling A"]),
            "compute to one score", "verdict"]  # fmt: skip
    wrong = sum(row["false"] for row in found["table"])
    held = [row["holds"] for row in found["table"] if row["holds"] is not None]
    return (
        f"{markdown(head, rows)}\n\n{found['runs']} of {found['of']} runs are fitted, the others "
        "are unstable; spread between seeds "
        f"{found['seed_sd']:.3f}. The interval holds the constructed ceiling in {sum(held)} of "
        f"{len(held)} variants; false verdicts: {wrong}."
    )


def _short_study(found: dict[str, Any]) -> str:
    """The verdicts of a study in a sentence."""
    reference, *others = found["table"]
    said = ", ".join(
        f"`{row['variant']}` is *{_short_verdict(row, reference['variant'])}*" for row in others
    )
    return f"{said} ({found['runs']} runs; spread between seeds {found['seed_sd']:.3f})."


def _short_verdict(row: dict[str, Any], reference: str) -> str:
    """The verdict without the names of variants that the table has already."""
    if not row["seeds"] and row["stability"] != "unstable":
        return "not run yet"
    words = str(row["words"])
    for shared in ("no difference", "undecided"):
        if words.startswith(shared):
            return shared
    return words.replace(reference, "the reference").replace(row["variant"], "it")


def speed() -> str:
    found = result("speed")
    paper = found["against_paper"]
    many, cli = found["many"], found["command_line"]
    rows = [
        ["fit with intervals, 100 points", f"{1e3 * paper['ours']['median']:.1f} ms"],
        [
            "the paper's procedure, same points",
            f"{paper['paper']['median']:.2f} s ({paper['ratio']:.0f} times as long)",
        ],
        [f"{many['runs']:,} runs × {many['points']} points, fitted", f"{many['fit_s']:.1f} s"],
        ["the same, compared", f"{many['compare_s']:.1f} s"],
        ["`scalerl fit run.csv`, end to end", f"{cli['fit_csv']['median']:.2f} s"],
    ]
    return markdown(["what", "time"], rows)


def stop_rules() -> str:
    rows = [
        [
            f"{r['end']:g} C_mid",
            f"{r['noise']:g}",
            _stops(r["upper"]),
            _stops(r["median"]),
        ]
        for r in result("stop_rules")["scenarios"]
    ]
    head = [
        "run ends at",
        "noise of an evaluation",
        "`gain < 0.02` stopped (wrongly)",
        "`median gain < 0.02` stopped (wrongly)",
    ]
    return markdown(head, rows)


def faults() -> str:
    """One row a kind of process; the result has each moment of the kill by itself."""
    ways = ("count", "by_itself", "by_resume", "lost")
    total: dict[str, Counter[str]] = {}
    for r in result("faults")["faults"]:
        process = total.setdefault(r["fault"].partition(":")[0], Counter())
        process.update({way: r[way] for way in ways})
    rows = [[process, *(str(of[way]) for way in ways)] for process, of in total.items()]
    return markdown(["kill -9 of", "count", "recovered by itself", "by `--resume`", "lost"], rows)


def cluster() -> str:
    """A sentence: kills within a Ray cluster, and how long until the next step."""
    found = result("cluster")
    took = found["seconds_to_the_next_step"]
    said = ", ".join(f"{seconds:.1f} s ({worker})" for worker, seconds in took.items())
    return f"The run survived all {found['kills']} kills; median time to the next step: {said}."


def elsewhere() -> str:
    """Curves of runs on Ray and with vLLM against those of one machine's processes."""

    def row(what: str, axis: str, pair: dict[str, Any]) -> list[str]:
        delta, ratio = pair["delta_A"], pair["speed"]["compute_ratio_b_over_a"]
        middle, (low, high) = delta["median"], delta["interval"]
        times, (least, most) = ratio["median"], ratio["interval"]
        if pair["b"] == "local":  # the other way round
            middle, low, high = -middle, -high, -low
            times, least, most = 1 / times, 1 / most, 1 / least
        ceiling = f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"
        compute = f"x{times:.2f} [{least:.2f}, {most:.2f}]"
        verdict = "no difference" if pair["verdict"] == "same" else pair["verdict"]
        return [what, axis, ceiling, compute, f"{pair['p_same_ceiling']:.2f}", verdict]

    ray, vllm = result("agree")["compare"], result("engine_curves")
    head = [
        "three seeds each",
        "by",
        "ceiling",
        "compute for the same",
        "p(same ceiling)",
        "verdict",
    ]
    where = "Ray, 2 ranks, 2 generators"
    rows = [
        row(where, "generated tokens", ray["generated_tokens"]["pairs"][0]),
        row(where, "FLOPs", ray["flops"]["pairs"][0]),
        row("vLLM", "FLOPs", vllm["pair"]),
    ]
    return markdown(head, rows)


def scale_out() -> str:
    """Sentences: steps and memory of ranks, and steps on Ray."""
    found = result("scale_out")
    by = {(r["ranks"], r["threads"], r["gives_back"]): r for r in found["fsdp"]["rows"]}
    one, two, ranks = by[1, 1, False], by[1, 2, False], by[2, 1, False]
    kept, given = (by[2, 1, gives]["megabytes_a_rank"] / 1000 for gives in (False, True))
    times = {where: statistics.median(s) for where, s in found["ray"]["seconds"].items()}
    return (
        f"A step of the larger takes {one['seconds']:.1f} s in one process with one thread, "
        f"{two['seconds']:.1f} s with two threads, and {ranks['seconds']:.1f} s on two ranks with "
        f"one thread each. A rank holds {kept:.1f} GB, or {given:.1f} GB where freed memory is "
        f"given back. A step of the tiny run takes {times['local']:.2f} s with processes and "
        f"{times['ray']:.2f} s with actors on Ray: {found['ray']['overhead']:.0%} more (medians of "
        f"{len(found['ray']['seconds']['ray'])} runs each, in turns)."
    )


def hand_over() -> str:
    """Each channel's times for the largest weights, and what an 8B model would take by them."""
    found = result("hand_over")
    rows = found["rows"]
    size = rows[-1]["size"]
    these = [r for r in rows if r["size"] == size]
    fast = {r["channel"]: r["bytes"] / r["arrive"] for r in these if r["generators"] == 1}

    def seconds(value: float) -> str:
        return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"

    body = []
    for channel in fast:
        of_channel = [r for r in these if r["channel"] == channel]
        body.append([channel, *(seconds(of_channel[0][k]) for k in ("publish", "load")),
                     *(seconds(r["arrive"]) for r in of_channel)])  # fmt: skip
    large = found["large_bytes"]
    said = ", ".join(f"{n} {seconds(large / rate)}" for n, rate in fast.items())
    head = [f"{size} ({these[0]['bytes'] / 1e6:.0f} MB)", "publish", "load",
            *(f"arrive, {n}" for n in (1, 2, 4))]  # fmt: skip
    return (
        markdown(head, body)
        + f"\n\nExtrapolated to the {large / 1e9:.0f} GB of an 8B model in BF16 and one generator: "
        f"{said}. {_share_of_a_step(rows)}"
    )


def _share_of_a_step(rows: list[dict[str, Any]]) -> str:
    """What publishing takes of a step of the trainer, by the steps of scale_out.json."""
    seconds = min(r["seconds"] for r in result("scale_out")["fsdp"]["rows"])
    took = {r["channel"]: r["publish"] for r in rows
            if r["size"] == "135M" and r["generators"] == 1}  # fmt: skip
    parts = ", ".join(f"{channel} {t / seconds:.1%}" for channel, t in took.items())
    return f"Of a step of 135M, publishing takes {parts}."


def _stops(found: dict[str, Any]) -> str:
    text = f"{found['stopped']} ({found['wrong']})"
    return text if found["typical"] is None else f"{text}, at evaluation {found['typical']:g}"


def learning_summary() -> str:
    found = result("learning_now")["summary"]["default"]
    of = found["seeds"]
    rows = [
        ["greedy pass rate, median", f"{found['greedy_start']:.2f} → {found['greedy_final']:.2f}"],
        ["pass rate at temperature 1, median", f"{found['start']:.2f} → {found['final']:.2f}"],
        ["minutes on two cores, median", f"{found['minutes']:.1f}"],
        ["forecast at half holds the end (90 %)", f"{found['end_covered']} of {of}"],
        [f"fitted ceiling within 0.03 of the true {found['truth']:.3f}",
         f"{found['ceiling_near']} of {of}"],
        ["its 90 % interval holds the truth", f"{found['ceiling_covered']} of {of}"],
        ["called identified: at half, at the end",
         f"{found['ceiling_identified_at_half']}, {found['ceiling_identified']} of {of}"],
    ]  # fmt: skip
    return markdown([f"default run, seeds: {of}", ""], rows)


def games() -> str:
    found = result("games")["summary"]
    rows = [
        [name, f"{of['start']:.2f} → {of['final']:.2f}",
         f"{of['greedy_start']:.2f} → {of['greedy_final']:.2f}", f"{of['truth']:.2f}",
         f"{of['end_covered']} of {of['seeds']}"]
        for name, of in found.items()
    ]  # fmt: skip
    head = ["game, recipe (median of seeds)", "pass rate", "greedy", "ceiling",
            "forecast at half holds the end (90 %)"]  # fmt: skip
    return markdown(head, rows)


def trl() -> str:
    found = result("against_trl")
    sides = ["TRL, 1 thread", "TRL, 2 threads", "scalerl, 1 thread", "scalerl train"]
    rows = []
    for case in (c for c in ("fixed", "ragged", "smollm2") if c in found):
        seconds = [found[case][side]["seconds"] for side in sides]
        rows.append([case, *(f"{x:.2f}" for x in seconds), f"{found[case]['limit_seconds']:.2f}",
                     f"{min(seconds[:2]) / seconds[3]:.1f} ×"])  # fmt: skip
    head = ["seconds a step", *sides, "limit of one core", "best TRL / scalerl train"]
    return markdown(head, rows)


def limits() -> str:
    """A sentence: shares of the peak by the width of the model, with answers of usual length."""
    found = result("limits")
    usual = found["default"]
    size = usual["rows"], usual["completion"]
    others = [r for r in found["growth"] if (r["rows"], r["completion"]) == size]
    rows = [usual, *(r for r in others if r["width"] != usual["width"])]
    widths = ", ".join(str(r["width"]) for r in rows)
    generator, trainer = (
        ", ".join(f"{100 * r[side]['share']:.0f}" for r in rows)
        for side in ("generator", "trainer")
    )
    return (
        f"with {usual['rows']} rows of {usual['prompt']} + {usual['completion']} tokens and widths "
        f"of {widths}, the generator reaches {generator} % and the trainer {trainer} % of it."
    )


def engines() -> str:
    """A list: the largest batch of each model."""
    found = result("engines")
    items = []
    for model, key in (("tiny", "tiny"), ("SmolLM2-135M", "smollm2")):
        r = found[key][-1]
        local, vllm = (r[side]["tokens_per_second"] for side in ("local", "vllm"))
        items.append(f"- {model}, {r['rows']} rows of {r['prompt']} + {r['completion']}: "
                     f"{local:,.0f} and {vllm:,.0f} ({local / vllm:.1f} ×)")  # fmt: skip
    return "\n".join(items)


def asynchrony() -> str:
    found = result("asynchrony")
    rows = [
        [
            name,
            f"{r['seconds']:.0f}",
            f"{r['speed_up']:.2f} ×",
            f"{r['generate_wait'] / r['seconds']:.0%}",
            f"{r['train_wait'] / r['seconds']:.0%}",
            f"{r['staleness_mean']:.1f} / {r['staleness_max']:.0f}",
            "never" if r["seconds_to_target"] is None else f"{r['seconds_to_target']:.0f}",
        ]
        for name, r in found["median"].items()
        if "helped" not in name
    ]
    head = ["schedule", f"s for {found['steps']} steps", "speed-up", "generator waits",
            "trainer waits", "staleness, mean / max", f"s to {found['target']}"]  # fmt: skip
    return markdown(head, rows)


def default_run() -> str:
    """A sentence: seconds a step, and how much of it each side waits."""
    found = result("default_run")["median"]
    plain = found["default"]
    return (
        f"a step takes {plain['step']:.2f} s, of which the generator waits "
        f"{plain['generate_wait']:.0%} and the trainer {plain['train_wait']:.0%}; with two "
        f"generators {found['two generators']['step']:.2f} s, without C kernels "
        f"{found['without C']['step']:.2f} s."
    )


def recovery() -> str:
    """A sentence: medians of the times."""
    found = result("recovery")["seconds"]
    start, generator, trainer = (median(found[k]) for k in ("start", "generator", "trainer"))
    return (
        f"The first step is done {start:.1f} s after the command. The successor of a generator "
        f"writes {generator:.1f} s after the kill, and the trainer's next step from the checkpoint "
        f"is done after {trainer:.1f} s (medians of {len(found['start'])})."
    )


def checks() -> str:
    """A list: how much longer a step takes with each verifier, and what stays unscored."""
    about = {
        "slow": "every call sleeps 0.5 s, `placement.checkers=64`",
        "never": "one call in a hundred never returns and is ended after 3 s "
        "(`placement.check_seconds=3`)",
        "one": "every call sleeps 0.5 s, a single checker",
    }
    found = result("checks")
    items = []
    for name, what in about.items():
        runs = found["runs"][name]
        unscored = sum(x["unscored"] for x in runs) / sum(x["rollouts"] for x in runs)
        left = f", {unscored:.1%} unscored" if unscored else ""
        items.append(f"- {what}: {found['median'][name]['ratio']:.2f} ×{left}")
    return "\n".join(items)


def packages() -> str:
    """What each package is, by its docstring, and what it imports, by the test that checks it."""
    graph = runpy.run_path(str(ROOT / "tests" / "test_import_graph.py"))
    rows = []
    for package, imports in graph["ALLOWED"].items():
        path = ROOT / "src" / "scalerl" / package
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        about = re.split(r"\. | \(", " ".join(text.split("\n\n")[0].split()))[0].rstrip(".")
        name = f"`{package}/`" if path.name == "__init__.py" else f"`{package}.py`"
        needs = f" (imports {', '.join(sorted(imports))})" if imports else ""
        rows.append(f"- {name}: {about}{needs}")
    floor = ", ".join(f"`{module}.py`" for module in graph["FLOOR"])
    return "\n".join(rows) + f"\n\nEvery package may also import {floor}."


def paired() -> str:
    """A sentence: coverage of the paired interval in simulated studies, and how narrow it is."""
    cases = [case for case in result("paired")["cases"] if case["prompts"] == 200]
    by = {(c["seed_sd_logits"], c["seeds"]): c for c in cases}
    none, usual, twice = sorted({c["seed_sd_logits"] for c in cases})
    three = [by[spread, 3] for spread in (none, usual, twice)]
    holds = ", ".join(f"{case['coverage']:.2f}" for case in three)
    narrower = ", ".join(f"{case['times_narrower']:.1f}" for case in three)
    return (
        f"with three seeds that differ not at all, as usual, and twice as much, the 90 % paired "
        f"interval holds in {holds} of the studies and is {narrower} times narrower than the "
        f"unpaired one. With one seed of the last kind it is too narrow: it holds in "
        f"{by[twice, 1]['coverage']:.2f}."
    )


def toy_part(name: str) -> Callable[[], str]:
    """A section of tests/extend/toy_parts.py: what the page shows is what the tests run."""

    def code() -> str:
        text = (ROOT / "tests" / "extend" / "toy_parts.py").read_text(encoding="utf-8")
        _, found, after = text.partition(f"\n# -- {name}\n")
        assert found, f"tests/extend/toy_parts.py has no section {name}"
        return "```python\n" + after.partition("\n# -- ")[0].strip() + "\n```"

    return code


def serve() -> str:
    """The live page with many runs, a row a figure."""
    r = result("serve")["many"]
    rows = [
        ["all forecasts are there, from a cold start", f"{r['all_forecast_s']:.0f} s", ""],
        ["the list opens", f"{r['open_s']:.1f} s", ""],
        ["a quick fit follows a drag (median)", f"{r['drag']['median_ms']:.0f} ms", "100 ms"],
        ["the same, 90th percentile", f"{r['drag']['p90_ms']:.0f} ms", ""],
        ["memory of the server", f"{r['server_mb']:.0f} MB", "400 MB"],
    ]
    if "first_paint_s" in r:
        rows.insert(1, ["first paint of the list", f"{r['first_paint_s']:.2f} s", "1 s"])
    if reading := r.get("reading"):
        filters = reading["filter_ms"]
        slowest = max(filters, key=filters.__getitem__)
        first = f"{reading['first_answer_s']:.2f} s"
        count = f"{reading['episodes']:,} episodes of one run"
        rows += [
            [f"{count}: the first answer", first, "1 s"],
            [f"the slowest filter of them, by {slowest}", f"{filters[slowest]:.0f} ms", "200 ms"],
        ]
    head = [f"{r['runs']:,} runs × {r['evaluations']} evaluations", "measured", "goal, below"]
    return markdown(head, rows)


def episodes() -> str:
    """What recording episodes costs, and what it takes to read them."""
    r = result("episodes")
    recording, reading = r["recording"], r["reading"]["with_index"]
    ms = recording["milliseconds_per_step"]
    step = 1000 * recording["cpu_seconds_per_step"]
    training = ms["choose"] + ms["make"] + ms["write"]
    answer = 1000 * ms["validation"] * recording["steps"] / recording["answers"]
    filters = reading["filter_and_histogram_processor_milliseconds"]
    return (
        f"In the tiny run, whose steps are the shortest there are ({step:.0f} ms of processor time "
        f"with their share of the validations), choosing, encoding and writing the training "
        f"episodes of a step takes {training:.1f} ms, {100 * training / step:.1f} %, and the "
        f"answers of a validation {answer:.0f} µs each. With {r['reading']['episodes']:,} episodes "
        f"the first answer takes "
        f"{reading['first_answer_processor_seconds']:.2f} s of processor time, and the slowest "
        f"filter with its histograms {max(filters.values()):.0f} ms."
    )


TABLES: dict[str, Callable[[], str]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        rivals,
        calibration_classes,
        calibration_rivals,
        calibration_shares,
        calibration_ceilings,
        learned_constants,
        rivals_scores,
        rivals_behind,
        rivals_where,
        backtest_least,
        backtest_methods,
        backtest_alarms,
        hazard_signs,
        breaks,
        ceilings,
        backtest_disturbed,
        synthetic_coverage,
        synthetic_identification,
        synthetic_ranking,
        synthetic_high,
        verdicts,
        verdicts_by_share,
        verdicts_at_the_end,
        verdicts_survival,
        paired,
        race,
        speed,
        stop_rules,
        faults,
        cluster,
        elsewhere,
        scale_out,
        hand_over,
        learning_summary,
        games,
        trl,
        limits,
        engines,
        asynchrony,
        default_run,
        recovery,
        checks,
        serve,
        episodes,
        packages,
        recipe_presets,
        recipe_keys,
        run_record,
    )
} | {f"toy-{name}": toy_part(name) for name in ("engine", "loss")}
TABLES |= {
    f"replication-{name}": functools.partial(replication, name)
    for name in ("recipes", "heads", "axes")
}
TABLES |= planner_tables.TABLES
TABLES |= findings_tables.TABLES


def fill(text: str) -> str:
    """Replace every marked table, and every marked value inside a sentence."""

    def table(found: re.Match[str]) -> str:
        edge = "\n" if "\n" in found[2] else ""  # a value inside a sentence stays on its line
        return f"<!-- begin {found[1]} -->{edge}{TABLES[found[1]]()}{edge}<!-- end {found[1]} -->"

    return re.sub(r"<!-- begin (\S+) -->(.*?)<!-- end \1 -->", table, text, flags=re.DOTALL)


#: An option that at least so many commands share is explained once, in a section of its own.
COMMON = 2
#: Groups of options that several commands have as a whole: each is a section of its own.
GROUPS = ("which numbers", "how to fit")


def cli_page() -> str:
    from scalerl.cli import parser

    top = parser()
    (commands,) = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
    leaves = _leaves(commands, "scalerl")
    options = {name: [_option(a) for a in command._actions if not isinstance(a, _Help)]
               for name, command in leaves}  # fmt: skip
    groups: dict[str, list[tuple[str, str]]] = {}
    for _, command in leaves:
        for group in command._action_groups:
            if group.title in GROUPS:
                members = [_option(a) for a in group._group_actions]
                if group.title == GROUPS[0]:  # and the source that they are read from
                    members.insert(0, _option(command._actions[1]))
                assert groups.setdefault(group.title, members) == members, group.title
    grouped = [option for group in groups.values() for option in group]
    count = Counter(option for shown in options.values() for option in shown)
    common = [o for o, times in count.items() if times >= COMMON and o not in grouped]
    parts = [
        "# Command line",
        "",
        "Written by `docs/build.py` from the commands. Exit codes: 0 done, 1 the answer is no, 2 "
        "bad input (one line on stderr says what to do). Amounts may be written `50k`, `1.5M`, "
        "amounts of compute also `300steps`, `2x`, `50%`.",
        "",
        "## Common options",
        "",
        _options(common),
    ]
    for title, members in groups.items():
        parts += ["", f"### {title.capitalize()}", "", _options(members)]
    for name, command in leaves:
        parts += ["", f"## {name}", "", str(command.description or "")]
        mine = options[name]
        own = [option for option in mine if option not in (*common, *grouped)]
        if own:
            parts += ["", _options(own)]
        links = [f"[{title}](#{title.replace(' ', '-')})" for title, members in groups.items()
                 if members[0] in mine]  # fmt: skip
        shared = [*links, *(_flag(option) for option in mine if option in common)]
        if shared:
            parts += ["", f"[Also](#common-options): {', '.join(shared)}."]
        if command.epilog:
            parts += ["", f"```sh\n{_example(command)}\n```"]
    return "\n".join(parts) + "\n"


def _options(options: list[tuple[str, str]]) -> str:
    return "\n".join(f"- {label}: {about}" for label, about in options)


_Help = argparse._HelpAction


def _option(action: argparse.Action) -> tuple[str, str]:
    """An option as it is written, and its meaning."""
    flags = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    value = action.metavar or ("|".join(action.choices) if action.choices else "")
    if action.nargs == 0 or not action.option_strings:
        value = ""
    label = f"`{flags} {value}`".replace(" `", "`")
    return label, (action.help or "").replace("%%", "%")


def _flag(option: tuple[str, str]) -> str:
    """The long name of an option, without its value."""
    flag = option[0].strip("`").split(", ")[-1].split(" ")[0]
    return f"`{flag}`"


def _leaves(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str
) -> list[tuple[str, argparse.ArgumentParser]]:
    """Every command that does something, subcommands included."""
    found = []
    for word, command in commands.choices.items():
        below = [a for a in command._actions if isinstance(a, argparse._SubParsersAction)]
        inner = _leaves(below[0], f"{name} {word}") if below else [(f"{name} {word}", command)]
        found += inner
    return found


def _example(command: argparse.ArgumentParser) -> str:
    return str(command.epilog).removeprefix("Example: ")


#: Classes with an example on the page; those of the others are in their docstrings, and where a
#: function makes the class, with that function.
WITH_EXAMPLE = {"Fit", "Run", "Study"}
#: Functions without one: another function's example shows the same.
WITHOUT_EXAMPLE = {"fit_all", "load_run"}
#: Methods that mean the same wherever they occur: the preamble explains them.
ALIKE = {"to_dict", "plot"}
#: Methods that the commands and the live page call, and readers of the page hardly ever.
LEFT_OUT = {
    *("Arm.levels", "Arm.log_compute_to", "Recipe.with_decay_fixed"),
    *("Study.screening", "Study.jobs", "Study.validations", "Study.models", "Study.finding"),
    *("Study.evals", "Study.results"),
}


def python_page() -> str:
    import scalerl

    parts = [
        "# Python",
        "",
        "Written by `docs/build.py` from the docstrings; their examples run as tests. Everything "
        "is imported from `scalerl`. Results have `.to_dict()`, plain values as `--json` prints "
        "them ([fields](json.md)); those that can be drawn have `.plot()`, which returns the "
        "matplotlib figure and saves it if a path is given.",
    ]
    functions = [name for name in scalerl.__all__ if not inspect.isclass(getattr(scalerl, name))]
    for name in [*functions, *(n for n in scalerl.__all__ if n not in functions)]:
        thing = getattr(scalerl, name)
        if name.startswith("__"):
            continue
        heading = name
        if not inspect.isclass(thing):
            given = inspect.signature(thing).parameters.values()
            heading = f"{name}({', '.join(_parameter(p) for p in given)})"
        short = name in WITHOUT_EXAMPLE or (inspect.isclass(thing) and name not in WITH_EXAMPLE)
        parts += ["", f"## `{heading}`", "", _docstring(thing, examples=not short)]
        items = []
        if dataclasses.is_dataclass(thing):
            shown = [f.name for f in dataclasses.fields(thing) if f.repr]
            if any(f"- `{field}`: " not in parts[-1] for field in shown):
                items.append(f"fields: {', '.join(f'`.{field}`' for field in shown)}")
        if inspect.isclass(thing):
            for method, value in vars(thing).items():
                doc = inspect.getdoc(value)
                hidden = method.startswith("_") or f"{name}.{method}" in LEFT_OUT
                if not hidden and callable(value) and doc and method not in ALIKE:
                    about = " ".join(doc.partition("\n\n")[0].split()).partition(". ")[0]
                    items.append(f"`.{method}()`: {about.rstrip('.')}")
        if items:
            parts += ["", *(f"- {item}" for item in items)]
    return "\n".join(parts) + "\n"


def _parameter(p: inspect.Parameter) -> str:
    name = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name
    return name if p.default is p.empty else f"{name}={p.default!r}"


def _docstring(thing: Any, examples: bool) -> str:
    """The docstring, with its parameters as a list and its doctest, if wanted, as a code block."""
    out: list[str] = []
    inside = False
    for line in _parameter_list(inspect.getdoc(thing) or "").splitlines():
        line = line.partition("  # doctest:")[0]  # an instruction to the test, not to the reader
        code = line.startswith((">>>", "...")) or (inside and line.strip() != "")
        if code and not examples:
            break
        if code != inside:
            out.append("```python" if code else "```")
            inside = code
        out.append(line)
    return "\n".join([*out, "```"] if inside else out).strip()


def _parameter_list(text: str) -> str:
    """Paragraphs in which every line is `name  meaning` or `name: meaning`, or continues one, as
    Markdown lists: as they are, Markdown would join their lines."""
    paragraphs = text.split("\n\n")
    for i, paragraph in enumerate(paragraphs):
        lines = re.sub(r"\n +", " ", paragraph).splitlines()
        found = [re.fullmatch(r"(\w+(?:, \w+)*)(?:  +|: )(\S.*)", line) for line in lines]
        if len(lines) > 1 and all(found):
            items = [f"- `{f[1].replace(', ', '`, `')}`: {f[2]}" for f in found if f]
            paragraphs[i] = "\n".join(items)
    return "\n\n".join(paragraphs)


def pages() -> dict[Path, str]:
    """Every generated file and its text."""
    found = {
        path: fill(path.read_text(encoding="utf-8"))
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    }
    found[ROOT / "docs" / "reference" / "cli.md"] = cli_page()
    found[ROOT / "docs" / "reference" / "python.md"] = python_page()
    found[ROOT / "docs" / "reference" / "openapi.json"] = openapi_document()
    return found


def openapi_document() -> str:
    """The OpenAPI document of the live page's API, from its declaration."""
    from scalerl.serve.api import openapi

    return openapi.text()


def main() -> int:
    stale = []
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(path.relative_to(ROOT))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
