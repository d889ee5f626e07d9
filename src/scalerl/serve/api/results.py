"""Schemas of runs, curves, fits, forecasts, comparisons and studies: the components of the API.

Fields of fits and forecasts are those of `scalerl fit --json` and `scalerl forecast --json`
(docs/reference/json.md).
"""

from __future__ import annotations

from scalerl.serve.api.schema import (
    Schema,
    anything,
    array,
    fields_of,
    flag,
    integer,
    mapping,
    number,
    or_null,
    ref,
    text,
)

RUN_ID = "id of the run: the same after a restart of the server"
COMPUTE = "the run's kind of compute"
SHARE = "share, 0 to 1"


def interval(meaning: str, *, null: bool = False) -> Schema:
    """[low, high]; an end that is open is null."""
    return array({"type": ["number", "null"]}, f"{meaning}: [low, high]", null=null)


def spread(meaning: str, unit: str = "") -> Schema:
    """A median with its interval."""
    found = {"median": number("median", unit, null=True), "interval": interval("interval")}
    return fields_of(meaning, found)


GAIN = fields_of("the gain of the next doubling of compute", {
    "compute": number("twice the last compute", COMPUTE),
    "gain": number("median gain in pass rate", SHARE),
    "interval": interval("interval of the gain"),
})  # fmt: skip

PREDICTION = fields_of("the pass rate at an amount of compute", {
    "compute": number("compute", COMPUTE),
    "median": number("median of the true pass rate", SHARE),
    "interval": interval("interval of the true pass rate"),
    "observed_interval": interval("interval of one evaluation"),
})  # fmt: skip

LIST_FORECAST = fields_of("the forecast of the whole run, in short; null until it is fitted", {
    "identified": flag("whether the ceiling may be quoted"),
    "ceiling": text("the ceiling in words"),
    "range": text("its interval in words"),
    "A": number("median of the ceiling", SHARE),
    "interval": interval("interval of the ceiling"),
    "alarm": text("what declines since when", null=True),
    "at": ref("Prediction"),
    "next_doubling": ref("Gain"),
    "warnings": array({"type": "string"}, "what to know before quoting it"),
})  # fmt: skip

RUN = fields_of("A run, as the list has it.", {
    "id": text(RUN_ID),
    "name": text("name of the run"),
    "where": text("its path relative to the served directory"),
    "kind": text("`run`: written by `scalerl train`; `log`: of another framework",
                 enum=["run", "log"]),
    "status": text("`reading`, `running`, `ended`, `failed`, `stopped`; of a log `growing` or "
                   "`quiet`"),
    "why": text("why it ended or failed", null=True),
    "group": text("recipe that replicates share", null=True),
    "recipe": text("name of its recipe", null=True),
    "study": text("id of the study that it is a member of", null=True),
    "tags": array({"type": "string"}, "tags that visitors gave it"),
    "points": integer("validations so far"),
    "x": text("kind of compute: `gpu_hours`, `hours`, `flops`, `tokens`, `samples`, `steps`, "
              "`unknown`", null=True),
    "unit": text("the kind of compute in words", null=True),
    "compute": number("compute at the last validation", COMPUTE, null=True),
    "step": integer("newest step on any line of its record", "steps", null=True),
    "pass_rate": number("pass rate of the last validation", SHARE, null=True),
    "budget": or_null(fields_of("how much of its budget is used", {
        "share": number("used share of the limit that ends the run first", SHARE),
        "text": text("the same in words"),
    })),
    "waits_for": text("what a running run waits for, in words", null=True),
    "warnings": integer("events that report a problem"),
    "problem": text("what could not be read or fitted", null=True),
    "forecast": or_null(ref("ListForecast")),
    "spark": array({"type": "number"}, "a few scores, evenly spaced, for a small curve"),
    "changed": number("time of the last change", "seconds since 1970"),
    "version": integer("rises with every change of its points"),
})  # fmt: skip

CURVE = fields_of("The points of a run, at most 1,500 of them.", {
    "compute": array({"type": "number"}, "compute of each point"),
    "score": array({"type": ["number", "null"]}, "score of each point"),
    "kind": text("kind of compute"),
    "unit": text("the kind of compute in words"),
    "total": integer("points before downsampling"),
    "y": text("column of the score"),
})  # fmt: skip

_DETAIL = {
    "axes": array(fields_of("a kind of compute", {
        "name": text("its name: a value of `axis`"), "label": text("in words"),
    }), "kinds of compute that the run can be shown against"),
    "notes": array({"type": "string"}, "what the importer changed"),
    "curve": or_null(ref("Curve")),
}  # fmt: skip
RUN_DETAIL = fields_of(
    "A run with its curve.", {**RUN["properties"], **_DETAIL}, optional=("notes",)
)

_POINTS = array(array({"type": ["number", "null"]}), "[compute of each point, score of each point]")
DRAWN_CURVE = fields_of("The fitted curve with its band, ready to be drawn.", {
    "x": array({"type": "number"}, "compute"),
    "median": array({"type": ["number", "null"]}, "median of the true pass rate at x"),
    "low": array({"type": ["number", "null"]}, "lower end of the band at x"),
    "high": array({"type": ["number", "null"]}, "upper end of the band at x"),
    "end": number("compute at which the window ends: beyond it the curve is the forecast"),
    "window": interval("compute of the window that was fitted"),
    "breaks": array({"type": "number"}, "compute at which the run was changed"),
    "used": {**_POINTS, "description": "points that were fitted: [compute, score]"},
    "held": {**_POINTS, "description": "points outside of the window: [compute, score]"},
    "kind": text("kind of compute"),
    "unit": text("the kind of compute in words"),
})  # fmt: skip

FIT = fields_of("The fit, as `scalerl fit --json` prints it.", {
    "run": text("name of the run"),
    "group": text("recipe that it belongs to", null=True),
    "law": text("`sigmoid`, `power`, `no-change`, or a law of your own"),
    "method": text("how it was fitted"),
    "x": text("kind of compute"),
    "x_name": text("column of compute"),
    "y_name": text("column of the score"),
    "score_kind": text("what the score was taken on: `validation`, `training`, `unknown`"),
    "n_points": integer("points used"),
    "window": interval("compute of the first and the last point used"),
    "params": mapping({"type": "number"}, "posterior medians: R_0, A, B, C_mid"),
    "intervals": mapping(interval("interval"), "intervals of the parameters"),
    "level": number("probability of the intervals", SHARE),
    "identified": flag("whether the ceiling may be quoted"),
    "r0_source": text("where R_0 comes from: `fitted`, `measured`, `given`, `first`"),
    "alarm": text("what declines since when", null=True),
    "rmse": number("of the points about the median curve", SHARE),
    "breaks": array({"type": "number"}, "compute at which the run was changed"),
    "warnings": array({"type": "string"}, "what to know before quoting it"),
    "notes": array({"type": "string"}, "what the importer changed"),
})  # fmt: skip

TARGET = fields_of("when a score is reached", {
    "score": number("the score", SHARE),
    "probability": number("probability of reaching it", SHARE),
    "compute": spread("compute at which it is reached", COMPUTE),
})  # fmt: skip

FORECAST = fields_of("The forecast, as `scalerl forecast --json` prints it.", {
    "run": text("name of the run"),
    "x": text("kind of compute"),
    "level": number("probability of the intervals", SHARE),
    "identified": flag("whether the ceiling may be quoted"),
    "alarm": text("what declines since when", null=True),
    "at": array(ref("Prediction"), "one for each `budget`"),
    "targets": array(ref("Target"), "one for each `target`"),
    "next_doubling": ref("Gain"),
    "recommendation": or_null(fields_of("with `price` and `value`: whether to go on", {
        "action": text("`stop` or `continue`"),
        "compute": number("compute to continue to", COMPUTE),
        "expected_net": number("expected value of the gain minus cost", "unit of the price"),
        "probability_pays": number("probability that it pays", SHARE),
        "reason": text("in one sentence"),
    })),
    "warnings": array({"type": "string"}, "what to know before quoting it"),
})  # fmt: skip

_FACT = fields_of("one of the main numbers, in words", {
    "name": text("what it is"), "value": text("its value"), "note": text("its interval"),
})  # fmt: skip
RUN_FORECAST = fields_of("Fit and forecast of a run, with the curve to draw.", {
    "id": text(RUN_ID),
    "curve": ref("DrawnCurve"),
    "fit": ref("Fit"),
    "forecast": ref("Forecast"),
    "facts": array(_FACT, "the four main numbers"),
    "words": array({"type": "string"}, "the sentences of the report"),
})  # fmt: skip

PAIR = fields_of("The verdict on two runs.", {
    "a": text("the run with the higher median ceiling"),
    "b": text("the other"),
    "verdict": text("`higher-ceiling`, `faster`, `same` or `undecided`"),
    "winner": text("the better run", null=True),
    "delta_A": spread("ceiling of b minus that of a", SHARE),
    "p_a_higher_ceiling": number("probability", SHARE),
    "p_b_higher_ceiling": number("probability", SHARE),
    "p_same_ceiling": number("probability", SHARE),
    "speed": anything("compute of b over that of a to one score; null where it is not known"),
    "survives": number("probability that the verdict is still there when both end", SHARE,
                       null=True),
    "alarm": text("why a declining run is not ranked", null=True),
})  # fmt: skip

COMPARISON = fields_of("Several runs with their forecasts, and the verdicts on them.", {
    "budget": array({"type": "number"}, "compute at which all are forecast"),
    "runs": array(fields_of("a run", {
        "id": text(RUN_ID),
        "name": text("name of the run"),
        "curve": ref("DrawnCurve"),
        "facts": array(_FACT, "the four main numbers"),
        "ceiling": text("the ceiling in words"),
        "A": number("median of the ceiling; null where it is not identified", SHARE, null=True),
        "interval": interval("interval of the ceiling"),
        "alarm": text("what declines since when", null=True),
    }), "in the order of the request"),
    "pairs": array(ref("Pair"), "the verdict on each pair"),
    "words": array({"type": "string"}, "the verdicts as sentences"),
    "left_out": array({"type": "string"}, "why runs were left out"),
})  # fmt: skip

STUDY = fields_of("A study, as the list has it.", {
    "id": text("id of the study"),
    "name": text("its name"),
    "where": text("its path relative to the served directory"),
    "members": integer("runs of the study"),
    "status": mapping({"type": "integer"}, "members in each state"),
    "problem": text("why it could not be read", null=True),
})  # fmt: skip

STUDY_DETAIL = fields_of("A study with its answer: `scalerl study DIR --json`.", {
    "id": text("id of the study"),
    "name": text("its name"),
    "where": text("its path relative to the served directory"),
    "reference": text("variant that all others are compared with"),
    "members": array(fields_of("a run of the study", {
        "name": text("its name"),
        "run": text("id of the run; null before it has started", null=True),
        "variant": text("its variant"),
        "seed": integer("its seed"),
        "differs": anything("key → value against the reference"),
        "status": text("`waiting`, `running`, `begun`, `failed`, `paused`, `screened`, "
                       "`unstable`, `done`"),
        "why": text("why it failed", null=True),
        "step": integer("last step", null=True),
        "pass_rate": number("last pass rate", SHARE, null=True),
    }), "its runs"),
    "table": array(anything("a row"), "a row for each variant: [fields](json.md#study)"),
    "knobs": array(anything("a knob"), "the compared variants, the largest difference first"),
    "race": anything("what the race does next; null where it is none"),
})  # fmt: skip

COMPONENTS: dict[str, Schema] = {
    "Prediction": PREDICTION,
    "Gain": GAIN,
    "ListForecast": LIST_FORECAST,
    "Run": RUN,
    "RunDetail": RUN_DETAIL,
    "Curve": CURVE,
    "DrawnCurve": DRAWN_CURVE,
    "Fit": FIT,
    "Target": TARGET,
    "Forecast": FORECAST,
    "RunForecast": RUN_FORECAST,
    "Pair": PAIR,
    "Comparison": COMPARISON,
    "Study": STUDY,
    "StudyDetail": STUDY_DETAIL,
}
