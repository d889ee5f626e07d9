"""The declaration of the API: every route with its parameters and its response.

The document (`openapi.document`), the checks of parameters (`Parameter.read`) and the list of
handlers are made from it; a new route is added here and gets a method in `handlers`.
"""

from __future__ import annotations

from scalerl.runs.lines import EvalLine, EventLine, SystemLine
from scalerl.serve.api import episodes
from scalerl.serve.api.declare import ApiRoute, Parameter
from scalerl.serve.api.health import HEALTH
from scalerl.serve.api.results import COMPONENTS, RUN_ID
from scalerl.serve.api.schema import (
    Schema,
    anything,
    array,
    fields_of,
    integer,
    mapping,
    record_schemas,
    ref,
    text,
)


def _page(items: Schema, name: str, meaning: str, cursor: str = "string") -> Schema:
    """A page of a list."""
    return fields_of(f"A page of {meaning}.", {
        name: array(items, meaning),
        "next": {"type": [cursor, "null"],
                 "description": "the value of `after` for the next page; null at the end"},
    })  # fmt: skip


# -- parameters that several routes share ---------------------------------------------------------

RUN = Parameter("id", RUN_ID, place="path")
STUDY = Parameter("id", "id of the study", place="path")
AXIS = Parameter("axis", "kind of compute, by default the run's own: a name of its `axes`")
AFTER_LINE = Parameter("after", "`next` of the page before")
WINDOW = (
    AXIS,
    Parameter("from", "compute at which the fitted window begins", "number", low=0),
    Parameter("to", "compute at which it ends", "number", low=0),
    Parameter("known", "points after this compute count as not yet measured", "number", low=0),
    Parameter("budget", "compute to forecast at", "numbers", low=0),
    Parameter("target", "scores: when they are reached", "numbers"),
    Parameter("price", "cost of a unit of compute", "number", low=0),
    Parameter("value", "what a point of score is worth", "number", low=0),
    Parameter("level", "probability of the intervals", "number", default=0.9, low=0, high=1),
)

STEPS = fields_of("Metrics of the steps of a run, a list for each.", {
    "step": array({"type": "integer"}, "the steps"),
    "metrics": mapping(array(anything("the value at each step; null where it has none")),
                       "the values of each metric, in the order of `step`"),
    "every": integer("1 where all steps are given; 4 where every fourth is"),
    "total": integer("steps on the record as far as they were read; null with `raw`", null=True),
    "next": {"type": ["string", "null"],
             "description": "with `raw`: the value of `after` for the lines that follow, or that "
                            "will; null without `raw`"},
})  # fmt: skip

METRIC = fields_of("What a metric means.", {
    "name": text("its name: a value of `metric`; NAME in it stands for any name"),
    "file": text("where it is: `steps` or `evals`", enum=["steps", "evals"]),
    "definition": text("what it is, in one sentence"),
    "unit": text("its unit"),
    "kind": text("`number`, `integer`, or `histogram`: an object of bin → number",
                 enum=["number", "integer", "histogram"]),
})  # fmt: skip

ABOUT = fields_of("The server.", {
    "version": text("version of scalerl"),
    "api": text("version of the API"),
    "directories": array({"type": "string"}, "served directories"),
    "runs": integer("runs that were found"),
    "studies": integer("studies that were found"),
})  # fmt: skip

RECIPE = fields_of("The recipe of a run.", {
    "name": text("its name", null=True),
    "values": mapping(anything("the value of a key"), "dotted key → value"),
})  # fmt: skip

ERROR = fields_of("Why a request was refused.", {"error": text("in one line")})

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("/about", "about", "The server, its version and what it serves", ref("About")),
    ApiRoute("/openapi.json", "openapi", "This document", anything("OpenAPI 3.1")),
    ApiRoute(
        "/metrics", "metrics", "What each metric means, with its unit",
        fields_of("All metrics.", {"metrics": array(ref("Metric"), "in the order of the record")}),
        (Parameter("run", "id of a run: only metrics that it has, with NAME filled in"),),
    ),
    ApiRoute(
        "/runs", "runs", "The runs, a page at a time", _page(ref("Run"), "runs", "runs"),
        (
            Parameter("limit", "runs on a page", "integer", default=100, low=1, high=1000),
            Parameter("after", "`next` of the page before"),
            Parameter("sort", "`name`, or `changed`: the latest first", default="name",
                      choices=("name", "changed")),
            Parameter("q", "words that name, path, recipe or status contain"),
            Parameter("where", "KEY=VALUE: a key of the recipe (`optimiser.lr=1e-4`) or a field "
                      "of the run (`status=running`); `!=` for any other value", "strings"),
            Parameter("tag", "a tag that the run has", "strings"),
        ),
    ),
    ApiRoute("/runs/{id}", "run", "A run with its curve", ref("RunDetail"), (RUN, AXIS)),
    ApiRoute(
        "/runs/{id}/forecast", "forecast", "Its fit and forecast", ref("RunForecast"),
        (RUN, *WINDOW),
    ),
    ApiRoute("/runs/{id}/recipe", "recipe", "Its recipe", ref("Recipe"), (RUN,)),
    ApiRoute(
        "/runs/{id}/steps", "steps", "Metrics of its steps", ref("Steps"),
        (
            RUN,
            Parameter("metric", "name of a metric (`loss`, `staleness/mean`); all numbers without",
                      "strings"),
            Parameter("points", "evenly picked steps at most, the last one among them", "integer",
                      default=400, low=2, high=480),
            Parameter("raw", "every step, from the first or from `after`", "boolean"),
            AFTER_LINE,
            Parameter("limit", "with `raw`: steps on a page", "integer", default=1000, low=1,
                      high=5000),
        ),
    ),
    ApiRoute(
        "/runs/{id}/evals", "evals", "Its validations as recorded",
        _page(ref("EvalLine"), "evals", "validations"),
        (RUN, AFTER_LINE,
         Parameter("limit", "lines on a page", "integer", default=500, low=1, high=5000)),
    ),
    ApiRoute(
        "/runs/{id}/events", "events", "Warnings, deaths, interventions, and how it ended",
        _page(ref("EventLine"), "events", "events"),
        (RUN, AFTER_LINE,
         Parameter("limit", "lines on a page", "integer", default=500, low=1, high=5000)),
    ),
    ApiRoute(
        "/runs/{id}/health", "health", "Staleness, waits, prompts, truncation, machine and cost",
        ref("Health"),
        (RUN,
         Parameter("last", "steps that the means are over", "integer", default=50, low=1, high=400),
         Parameter("price", "cost of a device-hour", "number", low=0)),
    ),
    ApiRoute(
        "/runs/{id}/system", "system", "Samples of its machine",
        fields_of("Samples of the machine that the loop is on.",
                  {"samples": array(ref("SystemLine"), "oldest first")}),
        (RUN, Parameter("points", "evenly picked samples at most, the last one among them",
                        "integer", default=500, low=1, high=2000)),
    ),
    ApiRoute(
        "/comparison", "comparison", "Several runs and the verdict on each pair",
        ref("Comparison"),
        (Parameter("run", "id of a run; repeated, up to 12", "strings", required=True), *WINDOW),
    ),
    ApiRoute(
        "/studies", "studies", "The studies",
        fields_of("All studies.", {"studies": array(ref("Study"), "by name")}),
    ),
    ApiRoute("/studies/{id}", "study", "A study and its answer", ref("StudyDetail"), (STUDY,)),
    *episodes.ROUTES,
)  # fmt: skip


def components() -> dict[str, Schema]:
    """All schemas that routes refer to."""
    own = {
        "About": ABOUT, "Error": ERROR, "Metric": METRIC, "Recipe": RECIPE, "Steps": STEPS,
        "Health": HEALTH,
    }  # fmt: skip
    records = record_schemas(EvalLine, EventLine, SystemLine)
    return {**own, **COMPONENTS, **episodes.COMPONENTS, **records}
