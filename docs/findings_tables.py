"""The tables of docs/findings, from the committed results of benchmarks/forces.py."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FORCES = (
    "lag",
    "lag-tuned",
    "lag-rate",
    "batch",
    "noise",
    "precision",
    "length",
    "group",
    "data",
    "tail",
)
#: Forces whose pages show how they act on ratios.
ACTING = ("lag", "noise", "precision")
NOT_RUN = "*Not run yet.*"
#: Probability from which on it is said that one cell is less often stable than another.
SURE = 0.97
#: A difference below this one does not matter.
MARGIN = 0.02
#: Of a comparison that leaves open which is higher, but not that one is below by the margin.
NOT_BELOW = f"not below by {MARGIN:g}".replace("0.", ".")
#: Verdicts that say that one is not lower than the other.
AS_HIGH = (NOT_BELOW, "no difference")
Result = dict[str, Any]


def found(name: str) -> Result | None:
    """The results of a force; None where it was not run."""
    path = RESULTS / f"forces_{name.replace('-', '_')}.json"
    return json.loads(path.read_text()) if path.exists() else None


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def force_table(name: str) -> str:
    """The picture of a force, every line at every dose, and the verdicts."""
    r = found(name)
    if r is None:
        return NOT_RUN
    lines = r["lines"]
    doses = list(dict.fromkeys(cell["label"] for line in lines for cell in line["cells"]))
    rows = []
    for line in lines:
        cells = {cell["label"]: _cell(cell) for cell in line["cells"]}
        rows.append([f"`{line['line']}`", *(cells.get(dose, "") for dose in doses)])
    said = [f"- `{line['line']}`: {line['words']}." for line in lines]
    if r["law"] is not None:
        said.append(f"- The law: {_law(r)}.")
    if r["asked"] == "differs":
        first = doses[0]
        said += [
            f"- {text}."
            for each in r["within"]
            if each["against"].endswith(f"@{first}") and (text := _contrast(each, undecided=True))
        ]
    more = [text for each in r["between"] if (text := _contrast(each))]
    versus = "\n\nLines at the same dose, where it is decided:\n\n" if more else ""
    return (
        f"![Level, C_mid and share of unstable runs against {r['dose']}](images/{name}.svg)\n\n"
        f"{r['runs']} of {r['of']} runs. Pass rate at the end of the budget, with the number of "
        f"unstable runs where there are any, by {r['dose']}:\n\n"
        + markdown([r["dose"], *doses], rows)
        + "\n\n"
        + "\n".join(said)
        + versus
        + "\n".join(f"- {text}." for text in more)
    )


def mechanism_table(name: str) -> str:
    """How a force acts: what a loss caps or clips, and how far sampler and trainer are apart."""
    r = found(name)
    if r is None:
        return NOT_RUN
    rows = []
    for line in r["lines"]:
        for cell in line["cells"]:
            m = r["mechanism"][cell["variant"]]
            rows.append(
                [
                    f"`{cell['variant']}`", _share(m["truncated"]), _share(m["rare_truncated"]),
                    _share(m["rare_of_truncated"]), _share(m["ess"]),
                    "" if m["kl"] is None else f"{m['kl']:.4f}", _share(m["far_gradient"]),
                ]
            )  # fmt: skip
    head = [
        "cell", "tokens capped or clipped", "of those drawn with p < .1",
        "share of them with p < .1", "effective sample size", "KL",
        "gradient from ratios beyond 2",
    ]  # fmt: skip
    return markdown(head, rows)


def _share(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _cell(cell: Result) -> str:
    if not cell["runs"]:
        return ""
    unstable = f"{cell['unstable']}/{cell['runs']} unstable" if cell["unstable"] else ""
    if cell["end"] is None:
        return unstable
    low, middle, high = cell["end"]
    level = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
    return f"{level}, {unstable}" if unstable else level


def _contrast(each: Result, *, undecided: bool = False) -> str:
    """A comparison of two cells; "" of one that was not decided, unless asked for."""
    said = []
    if each["difference"] is not None and (undecided or each["verdict"] != "undecided"):
        low, middle, high = each["difference"]
        said.append(f"*{each['verdict']}*, {middle:+.3f} [{low:+.3f}, {high:+.3f}]")
    less = each["p_less_stable"]
    if max(less, 1 - less) >= SURE:
        said.append(f"*{'less' if less > 0.5 else 'more'} often stable*")
    return f"`{each['variant']}` against `{each['against']}`: {'; '.join(said)}" if said else ""


def _law(r: Result) -> str:
    law = r["law"]
    low, high = law["interval"]
    return (
        f"slope of ln({r['dose']}) on ln({law['over']}) {law['slope']:.2f} "
        f"[{low:.2f}, {high:.2f}], claimed {law['claimed']:g}: *{law['verdict']}*"
    )


# -- the claims -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of a paper, the force that tests it, and what the results say of it."""

    text: str
    source: str
    force: str
    #: Verdict and its dose, in words.
    decide: Callable[[Result], tuple[str, str]]


def _below(r: Result, line: str, other: str) -> tuple[str, str]:
    """Whether a line is below another at some doses, never above it, and at no larger dose as
    high."""
    at: dict[str, list[str]] = {}
    for each in [*r["between"], *r["within"]]:
        (mine, dose), (theirs, their_dose) = (
            each[key].split("@", 1) for key in ("variant", "against")
        )
        if dose != their_dose or {mine, theirs} != {line, other}:
            continue
        verdict = _beside(each, turned=mine == other)
        at.setdefault(verdict, []).append(dose)
    doses = [cell["label"] for cell in r["lines"][0]["cells"]]
    return _decided(at, f"{line}, by {r['dose']}", doses)


def _beside(each: Result, *, turned: bool) -> str:
    """Below: a lower level, or less often stable. `turned`: the comparison is the other way round
    than the claim."""
    words = ("above", "below") if turned else ("below", "above")
    less = each["p_less_stable"]
    if each["verdict"] in ("lower", "higher"):
        return words[each["verdict"] == "higher"]
    if max(less, 1 - less) >= SURE:
        return words[less < 0.5]
    if each["verdict"] == "undecided" and each["difference"] is not None:
        low, _, high = each["difference"]
        if (high < MARGIN) if turned else (low > -MARGIN):
            return NOT_BELOW
    return str(each["verdict"])


def _decided(at: dict[str, list[str]], key: str, doses: Sequence[str] = ()) -> tuple[str, str]:
    """`doses`: those of the force, the mildest first, where the lines are compared at doses."""
    said = "; ".join(f"{verdict} at {', '.join(doses)}" for verdict, doses in at.items())
    verdict = "undecided"
    if "above" in at:
        verdict = "does not hold" if "below" not in at else "depends on the dose"
    elif "below" in at:
        decided = [d for d in doses if any(d in at.get(v, []) for v in ("below", *AS_HIGH))]
        holds = not decided or decided[-1] in at["below"]
        verdict = "holds" if holds else "depends on the dose"
    elif at and "undecided" not in at:
        verdict = "does not hold"
    return verdict, f"{key}: {said}" if said else ""


def _best_below(r: Result, line: str, other: str) -> tuple[str, str]:
    """Whether the best dose of a line ends below the best dose of another, by their intervals."""
    ends = {}
    for each in r["lines"]:
        stable = [c for c in each["cells"] if c["end"] is not None and not c["unstable"]]
        if stable:
            best = max(stable, key=lambda c: float(c["end"][1]))
            ends[each["line"]] = (best["label"], *best["end"])
    if line not in ends or other not in ends:
        return "undecided", ""
    (mine, low, middle, high), (theirs, other_low, other_middle, other_high) = (
        ends[line], ends[other],
    )  # fmt: skip
    verdict = "undecided"
    if high < other_low:
        verdict = "holds"
    elif low > other_high:
        verdict = "does not hold"
    return verdict, (
        f"best {r['dose']}: {line} {mine}, {middle:.3f} [{low:.3f}, {high:.3f}]; "
        f"{other} {theirs}, {other_middle:.3f} [{other_low:.3f}, {other_high:.3f}]"
    )


def _cells_below(r: Result, cells: str, others: str) -> tuple[str, str]:
    """The same of two doses of each line."""
    at: dict[str, list[str]] = {}
    for each in r["within"]:
        line, dose = each["variant"].split("@", 1)
        _, other = each["against"].split("@", 1)
        if {dose, other} != {cells, others}:
            continue
        verdict = _beside(each, turned=dose == others)
        at.setdefault(verdict, []).append(line)
    return _decided(at, f"{cells} against {others}")


def _law_claim(r: Result) -> tuple[str, str]:
    return (r["law"]["verdict"], _law(r)) if r["law"] is not None else ("undecided", "")


def _any_collapse(r: Result) -> tuple[str, str]:
    """Whether most runs of some cell are unstable beyond the first dose."""
    lost = [
        cell["variant"]
        for line in r["lines"]
        for cell in line["cells"][1:]
        if cell["runs"] and cell["p_unstable"][0] > 0.5
    ]
    if lost:
        return "holds", f"most runs are unstable at {', '.join(lost)}"
    last = [line["cells"][-1] for line in r["lines"]]
    said = ", ".join(f"{c['unstable']} of {c['runs']} at {c['variant']}" for c in last)
    return "does not hold up to the largest dose", f"unstable runs: {said}"


def _line_falls(r: Result, line: str) -> tuple[str, str]:
    mine = next((each for each in r["lines"] if each["line"] == line), None)
    if mine is None:
        return "not run yet", ""
    names = {"falls": "holds", "holds": "does not hold up to the largest dose"}
    return names.get(mine["verdict"], "undecided"), mine["words"]


def _grows(r: Result) -> tuple[str, str]:
    """Whether the best dose at the whole budget is larger than at a quarter of it."""
    best = r["lines"][0]["best"]
    if not best:
        return "undecided", ""
    first, last = best[0], best[-1]
    lowest, highest = (min(map(float, last["among"])), max(map(float, first["among"])))
    verdict = "holds" if lowest > highest else "undecided"
    if float(first["best"]) > float(last["best"]) and max(map(float, last["among"])) < min(
        map(float, first["among"])
    ):
        verdict = "does not hold"
    return verdict, r["lines"][0]["words"]


CLAIMS = (
    Claim("CISPO ends above DAPO when tokens are old", "ScaleRL", "lag",
          functools.partial(_below, line="dapo", other="cispo")),
    Claim("CISPO ends above DAPO when tokens are old, at a learning rate of their own", "ours",
          "lag-tuned", functools.partial(_best_below, line="dapo", other="cispo")),
    Claim("CISPO ends above GRPO when tokens are old", "ScaleRL", "lag",
          functools.partial(_below, line="grpo", other="cispo")),
    Claim("Without ratios (REINFORCE) old tokens cost more than with them", "ScaleRL", "lag",
          functools.partial(_below, line="reinforce", other="cispo")),
    Claim("A token-level ratio ends below a truncated sequence-level one at large lag",
          "Huang 2026", "lag", functools.partial(_below, line="cispo", other="sequence-tis")),
    Claim("At large lag, larger batches bring a truncated sequence-level ratio back", "Huang 2026",
          "batch", functools.partial(_line_falls, line="sequence-tis")),
    Claim("The largest stable learning rate falls as 1/k", "2607.01083", "lag-rate", _law_claim),
    Claim("Mismatch between sampler and trainer alone collapses training", "2605.14220", "noise",
          _any_collapse),
    Claim("Ratios make training bear more mismatch", "2605.14220", "noise",
          functools.partial(_below, line="reinforce", other="cispo")),
    Claim("BF16 heads end below FP32 heads", "ScaleRL", "precision",
          functools.partial(_cells_below, cells="bf16", others="fp32")),
    Claim("BF16 heads end below FP16 heads", "2510.26788", "precision",
          functools.partial(_cells_below, cells="bf16", others="fp16")),
    Claim("Truncated answers break runs", "ScaleRL", "length", _any_collapse),
    Claim("Interruption ends above no control of length", "ScaleRL", "length",
          functools.partial(_below, line="neither", other="interruption")),
    Claim("Interruption ends above a penalty on length", "ours", "length",
          functools.partial(_below, line="penalty", other="interruption")),
    Claim("The best number of rollouts per prompt grows with compute", "2603.12151", "group",
          _grows),
    Claim("No-positive-resampling ends above uniform sampling", "ScaleRL", "data",
          functools.partial(_below, line="uniform", other="no-positive-resampling")),
    Claim("Solved prompts that may return end above those dropped for good", "ours", "data",
          functools.partial(_below, line="no-positive-resampling", other="with-a-way-back")),
    Claim("A small pool of prompts lowers the held-out pass rate", "ScaleRL", "data",
          functools.partial(_line_falls, line="uniform")),
)  # fmt: skip


def claims() -> str:
    """The table of claims: what was decided, and at which dose."""
    rows = []
    for claim in CLAIMS:
        r = found(claim.force)
        verdict, dose = ("not run yet", "") if r is None else claim.decide(r)
        rows.append(
            [claim.text, claim.source, f"[{claim.force}]({claim.force}.md)", f"**{verdict}**", dose]
        )
    return markdown(["claim", "paper", "force", "here", "dose"], rows)


def truth() -> str:
    """How often verdicts on simulated studies are right."""
    path = RESULTS / "forces_truth.json"
    if not path.exists():
        return NOT_RUN
    r = json.loads(path.read_text())
    rows = []
    for title, part in (("dose at which a line falls", "doses"), ("slope of a law", "laws")):
        each = r[part]
        verdicts = ", ".join(f"{k}: {n}" for k, n in each["verdicts"].items())
        rows.append(
            [title, str(each["n"]), f"{each['covered']:.0%}", f"{each['wrong']:.1%}", verdicts]
        )
    head = ["simulated", "n", "interval has the truth", "wrong verdicts", "verdicts"]
    return markdown(head, rows)


def alarms() -> str:
    """Each sign of trouble: how early, how often false."""
    path = RESULTS / "forces_alarms.json"
    if not path.exists():
        return NOT_RUN
    r = json.loads(path.read_text())
    rows = [
        [
            f"`{sign['sign']}`", sign["rule"], f"{sign['caught']} of {sign['collapsed']}",
            "" if sign["lead"] is None else f"{sign['lead']:.0f}",
            f"{sign['false']} of {sign['healthy']}",
        ]
        for sign in r["signs"]
    ]  # fmt: skip
    head = ["sign", "on when", "raised before the collapse", "median lead, steps",
            "false alarms in healthy runs"]  # fmt: skip
    return markdown(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    **{f"force-{name}": functools.partial(force_table, name) for name in FORCES},
    **{f"mechanism-{name}": functools.partial(mechanism_table, name) for name in ACTING},
    "force-claims": claims,
    "force-truth": truth,
    "force-alarms": alarms,
}
