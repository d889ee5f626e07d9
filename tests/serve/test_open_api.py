"""The JSON API and its contract: what the document says is what the server answers."""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from jsonschema import Draft202012Validator
from made_records import add_play, made_run
from serving import Page, process, wait_for
from serving import get as read

from made_study import made_study
from scalerl.runs.lines import GpuSample, SystemLine
from scalerl.runs.store import RunStore
from scalerl.serve.api import openapi
from scalerl.serve.api.declare import PREFIX
from scalerl.serve.api.routes import ROUTES
from scalerl.serve.api.series import catalogue, leaves

ROOT = Path(__file__).parents[2]
#: A run that `scalerl study` made, as it is committed.
REAL = ROOT / "docs" / "replication" / "heads" / "runs" / "loo-fp32-s0"
DOCUMENT = openapi.document()
#: Documented fields that no record here has: of validations that failed, or had several turns, and
#: of episodes that could not be read.
RARE = {
    "EvalLine": {"failed", "play", "downstream", "temperatures"},
    "EventLine": {"prompts", "answers", "branch", "changes", "reason", "why"},
    "SetScore": {"failed", "scored"},
    "Episode": {"set", "problems"},
    "EpisodeFacts": {"set"},
    "EpisodePage": {"problems"},
    "EpisodeHistograms": {"problems"},
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    add_play(made_run(path / "first", n=31, steps=300))
    made_run(path / "second", n=31, steps=300, seed=1)
    store = RunStore(path / "first", resume=True)
    for step in (10, 20):
        store.append(SystemLine(step, 1e9, 0.5, 2, 10, 20, 5, (GpuSample(0.9, 1, 2),)))
    rows = "".join(f"log,{i * 10},{0.2 + 0.5 * i / (i + 20):.4f}\n" for i in range(1, 30))
    (path / "log.csv").write_text("run,step,val_acc\n" + rows)
    made_study(path / "study", variants=2, seeds=1, evals=11, steps=20)
    return Page(path, REAL)


def get(page, path, status=200, **query):
    answer = page.ask(f"{PREFIX}{path}?{urlencode(query, doseq=True)}")
    assert answer.status == status, answer.text
    return answer.json()


def ids(page):
    return {run["name"]: run["id"] for run in get(page, "/runs")["runs"]}


def real_run(page):
    return ids(page)[REAL.name]


# -- the document ---------------------------------------------------------------------------------


def test_the_document_is_sound():
    """Its schemas are JSON schemas, its references lead somewhere, its paths name their
    parameters."""
    assert DOCUMENT["openapi"] == "3.1.0" and DOCUMENT["info"]["version"]
    components = DOCUMENT["components"]["schemas"]
    for schema in components.values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(DOCUMENT)
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= components.keys()
    names = [item["get"]["operationId"] for item in DOCUMENT["paths"].values()]
    assert len(set(names)) == len(names)
    for path, item in DOCUMENT["paths"].items():
        asked = item["get"]["parameters"]
        assert all(each["description"] and each["schema"] for each in asked)
        inside = [each["name"] for each in asked if each["in"] == "path"]
        assert inside == re.findall(r"\{(\w+)\}", path)
        Draft202012Validator.check_schema(schema_of(path))


def test_every_component_is_used_and_described():
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DOCUMENT)))
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert name in used and schema["description"], name


def test_the_committed_document_is_that_of_the_code(page):
    committed = (ROOT / "docs/reference/openapi.json").read_text(encoding="utf-8")
    assert committed == openapi.text(), "run `make docs`"
    assert page.ask(f"{PREFIX}/openapi.json").text == committed


def test_every_route_exists_and_every_route_is_documented(page):
    served = {re.sub(r":path\}", "}", r.path) for r in page.site.routes if "/v1/" in r.path}
    documented = {r.whole_path for r in ROUTES}
    assert served == documented


def schema_of(path):
    return DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"][
        "schema"
    ]


# -- responses ------------------------------------------------------------------------------------


def asked(page):
    """A path and a query for every route; where there are several, the answers differ in what they
    have."""
    known = ids(page)
    first, second, real = known["first"], known["second"], real_run(page)
    (study,) = get(page, "/studies")["studies"]
    more = {"target": "0.5", "price": 1, "value": 1, "budget": "1e13"}
    return {
        "/about": [("/about", {})],
        "/openapi.json": [("/openapi.json", {})],
        "/metrics": [("/metrics", {}), ("/metrics", {"run": real})],
        "/runs": [("/runs", {}), ("/runs", {"limit": 1})],
        "/runs/{id}": [(f"/runs/{key}", {}) for key in (first, real, known["log"])],
        "/runs/{id}/forecast": [(f"/runs/{first}/forecast", more), (f"/runs/{real}/forecast", {})],
        "/runs/{id}/recipe": [(f"/runs/{real}/recipe", {})],
        "/runs/{id}/steps": [
            (f"/runs/{real}/steps", {"points": 20}),
            (f"/runs/{first}/steps", {"raw": 1, "limit": 3}),
        ],
        "/runs/{id}/evals": [(f"/runs/{key}/evals", {}) for key in (first, real)],
        "/runs/{id}/events": [(f"/runs/{key}/events", {}) for key in (first, real)],
        "/runs/{id}/health": [
            (f"/runs/{key}/health", {"price": 2.5}) for key in (first, second, real)
        ],
        "/runs/{id}/system": [(f"/runs/{first}/system", {})],
        "/comparison": [("/comparison", {"run": [first, second]})],
        "/studies": [("/studies", {})],
        "/studies/{id}": [(f"/studies/{study['id']}", {})],
    } | of_episodes(page, first)


def of_episodes(page, first):
    one = get(page, f"/runs/{first}/episodes")["episodes"][0]
    base = f"/runs/{first}"
    return {
        "/runs/{id}/episodes": [(f"{base}/episodes", {"limit": 2})],
        "/runs/{id}/episodes/histograms": [(f"{base}/episodes/histograms", {"correct": "false"})],
        "/runs/{id}/episodes/{episode}": [(f"{base}/episodes/{one['id']}", {})],
        "/runs/{id}/prompts/{prompt}/episodes": [
            (f"{base}/prompts/{quote(one['prompt'], safe='')}/episodes", {})
        ],
    }


def test_responses_have_exactly_the_documented_fields(page):
    """Each response is valid, no field is undocumented, and each documented field, also one that
    may be left out, is in some response."""
    seen = set()
    for path, requests in asked(page).items():
        whole = schema_of(PREFIX + path) | {"components": DOCUMENT["components"]}
        validator = Draft202012Validator(whole)
        for one, query in requests:
            found = get(page, one, **query)
            problem = next(validator.iter_errors(found), None)
            assert problem is None, f"{one}: {problem.json_path}: {problem.message}"
            seen |= set(fields_in(found, whole, ""))
    reached = {name for name, _ in seen}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        if name in reached:
            missing = schema.get("properties", {}).keys() - {f for n, f in seen if n == name}
            assert missing <= RARE.get(name, set()), f"no response has {missing} of {name}"
    expected = {"Run", "Fit", "Forecast", "Health", "StudyDetail", "Pair", "Steps", "SystemLine"}
    assert expected <= reached


def fields_in(value, schema, name):
    """(component, field) of every field of a response."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from fields_in(value, DOCUMENT["components"]["schemas"][name], name)
    for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        if value is not None and choice != {"type": "null"}:
            yield from fields_in(value, choice, name)
    if isinstance(value, dict):
        inner = schema.get("additionalProperties")
        for key, each in value.items():
            if key in schema.get("properties", {}):
                yield name, key
                yield from fields_in(each, schema["properties"][key], "")
            elif isinstance(inner, dict):
                yield from fields_in(each, inner, "")
    if isinstance(value, list):
        for each in value:
            yield from fields_in(each, schema.get("items", {}), "")


def test_every_documented_choice_is_answered(page):
    """What the document lists as values of a parameter, the server takes."""
    tried = 0
    for path, requests in asked(page).items():
        one, query = requests[0]
        for parameter in DOCUMENT["paths"][PREFIX + path]["get"]["parameters"]:
            for choice in parameter["schema"].get("enum", ()):
                assert get(page, one, **query | {parameter["name"]: choice}) is not None
                tried += 1
    assert tried > 10


@pytest.mark.parametrize(
    "path, query, says",
    [
        ("/runs", {"limt": 1}, "no parameter 'limt'"),
        ("/runs", {"limit": "many"}, "limit is a whole number from 1 up to 1000"),
        ("/runs", {"limit": 0}, "limit is a whole number"),
        ("/runs", {"limit": [1, 2]}, "limit is given twice"),
        ("/runs", {"sort": "colour"}, "sort is one of name, changed"),
        ("/runs", {"where": "optimiser.lr"}, "where is KEY=VALUE"),
        ("/runs", {"after": "nobody"}, "begin again without `after`"),
        ("/runs", {"q": "x" * 3000}, "at most 2000 characters"),
        ("/comparison", {}, "needs the parameter run"),
        ("/runs/{id}/health", {"price": "nan"}, "price is a number"),
        ("/runs/{id}/forecast", {"level": 7}, "level is a number from 0 up to 1"),
        ("/runs/{id}/forecast", {"target": "3"}, "a score in (0, 1]"),
        ("/runs/{id}/steps", {"raw": "perhaps"}, "raw is 1 or 0"),
        ("/runs/{id}/evals", {"after": "../../etc"}, "after is `next` of the page before"),
        ("/runs/{id}/evals", {"after": "5-0"}, "the record was cut or replaced"),
    ],
)
def test_a_bad_request_gets_one_line(page, path, query, says):
    found = get(page, path.replace("{id}", ids(page)["first"]), 400, **query)
    assert found.keys() == {"error"} and says in found["error"] and "\n" not in found["error"]


def test_what_is_not_there_is_not_found(page):
    assert get(page, "/runs/nobody", 404)["error"]
    assert get(page, "/studies/none", 404)["error"]
    assert page.ask(f"{PREFIX}/nothing").status == 404
    assert "no record" in get(page, f"/runs/{ids(page)['log']}/steps", 400)["error"]


def test_nothing_can_be_changed_by_it(page):
    for path in (r.whole_path for r in ROUTES):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert page.ask(path.replace("{id}", "x"), method=method).status == 405


# -- runs -----------------------------------------------------------------------------------------


def names(page, **query):
    return [run["name"] for run in get(page, "/runs", **query)["runs"]]


def test_pages_of_runs_join_to_the_list(page):
    whole, found, after = names(page), [], {}
    while True:
        part = get(page, "/runs", limit=2, **after)
        found += [run["name"] for run in part["runs"]]
        if part["next"] is None:
            break
        after = {"after": part["next"]}
    assert found == whole and len(whole) == 6
    assert sorted(names(page, sort="changed")) == sorted(whole)


def test_runs_are_filtered_by_recipe_by_field_and_by_words(page):
    assert names(page, where=["seed=1", "optimiser.lr=0.0001"]) == ["second"]
    assert names(page, where="optimiser.lr!=1e-4", q="LOO s0") == [REAL.name]
    assert names(page, where="kind=log") == ["log"]
    assert names(page, where="no.such.key=1") == [] == names(page, tag="none")


def test_a_forecast_has_the_numbers_of_the_page(page):
    key = ids(page)["first"]
    mine = get(page, f"/runs/{key}/forecast", **{"from": 2e11, "to": 2e12, "axis": "flops"})
    theirs = page.ask("/api/fit", {"run": key, "window": [2e11, 2e12], "axis": "flops"}).json()
    assert mine["curve"] == theirs["curve"] and mine["facts"] == theirs["facts"]
    assert all(theirs["fit"][name] == value for name, value in mine["fit"].items())


def test_the_script_of_the_docs_works_as_it_stands(tmp_path):
    made_run(tmp_path / "first", n=12, steps=40)
    text = (ROOT / "docs/how-to/build-on-the-api.md").read_text(encoding="utf-8")
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    with process(tmp_path) as (address, _):
        wait_for(
            lambda: any(r["points"] for r in json.loads(read(address, "/api/v1/runs")[2])["runs"])
        )
        here = script.replace("http://127.0.0.1:8642/", address)
        done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("first 0.") and "probability" in done.stdout


# -- metrics --------------------------------------------------------------------------------------


def test_every_number_of_a_real_record_has_a_definition_and_a_unit(page):
    infos = catalogue()
    for info in infos:
        assert re.fullmatch(r"[^a-zΠ].+\.", info.definition, re.S) and info.unit, info
        assert ". " not in info.definition, info
    units = {info.name: info.unit for info in infos}
    assert units["compute/flops"] == "FLOPs" and units["n_prompts"] == "count"
    assert units["ledger/lost_device_seconds"] == "seconds"
    # Without a unit are ratios, norms, and what a recipe or a reward function defines.
    plain = {"loss", "grad_norm", "lr", "kl", "reward", "metrics/NAME", "ratio/mean", "ratio/max"}
    assert {name for name, unit in units.items() if unit == "1"} == plain | {"ratio/min"}
    for file, line in (("steps", last_line("steps.jsonl")), ("evals", last_line("evals.jsonl"))):
        patterns = [re.escape(i.name).replace("NAME", ".+") for i in infos if i.file == file]
        for name, _ in leaves(line):
            assert any(re.fullmatch(p, name) for p in patterns), f"{file}: {name}"
    found = get(page, "/metrics", run=real_run(page))["metrics"]
    assert {"staleness/mean", "ledger/spent/train"} <= {m["name"] for m in found}
    assert not any("NAME" in m["name"] for m in found)


def last_line(name):
    return json.loads((REAL / name).read_text().splitlines()[-1])


def test_series_are_the_numbers_of_the_record(page):
    lines = [json.loads(x) for x in (REAL / "steps.jsonl").open()]
    key = real_run(page)
    wanted = ["loss", "length/mean", "no/such"]
    raw = get(page, f"/runs/{key}/steps", raw=1, metric=wanted)
    assert raw["step"] == [line["step"] for line in lines[: len(raw["step"])]]
    assert raw["metrics"]["loss"] == [line["loss"] for line in lines[: len(raw["step"])]]
    picked = get(page, f"/runs/{key}/steps", points=10, metric=wanted)
    assert 5 <= len(picked["step"]) <= 10 and picked["step"][-1] == lines[-1]["step"]
    assert picked["metrics"]["length/mean"][-1] == lines[-1]["length"]["mean"]
    assert set(picked["metrics"]["no/such"]) == {None} and picked["total"] == len(lines)


def test_lines_come_by_cursor_while_the_record_grows_and_until_it_is_cut(tmp_path):
    run = made_run(tmp_path / "run", n=8, steps=20)
    page = Page(tmp_path)
    (key,) = ids(page).values()
    path, steps, after = f"/runs/{key}/steps", [], {}
    for _ in range(3):
        part = get(page, path, raw=1, limit=7, metric="loss", **after)
        steps += part["step"]
        after = {"after": part["next"]}
    assert steps == list(range(1, 21))
    assert get(page, path, raw=1, **after)["step"] == []
    with (run / "steps.jsonl").open("a") as file:
        file.write('{"step": 21, "loss": 1}\nno JSON\n{"step": 22, "lo')
    part = get(page, path, raw=1, metric="loss", **after)
    assert part["step"] == [21] and part["metrics"]["loss"] == [1]
    (run / "steps.jsonl").write_text('{"step": 1, "loss": 2}\n' * 300)
    assert "was cut or replaced" in get(page, path, 400, raw=1, **after)["error"]


# -- health ---------------------------------------------------------------------------------------


def test_health_is_the_mean_of_the_last_steps(page):
    lines = [json.loads(x) for x in (REAL / "steps.jsonl").open()]
    found = get(page, f"/runs/{real_run(page)}/health", last=10, price=3600.0)
    last, before = lines[-10:], lines[-11]
    assert found["steps"] == 10 and found["step"] == lines[-1]["step"]
    rate = sum(1 - line["zero_variance"] for line in last) / 10
    assert found["prompts"]["with_gradient"] == pytest.approx(rate)
    assert sum(lag["share"] for lag in found["staleness"]["lags"]) == pytest.approx(1.0)
    tokens = sum(sum(line["staleness"]["histogram"].values()) for line in last)
    assert sum(lag["tokens"] for lag in found["staleness"]["lags"]) == tokens
    spent = {k: v - before["ledger"]["spent"][k] for k, v in lines[-1]["ledger"]["spent"].items()}
    share = spent["train"] / (spent["train"] + spent["train_wait"])
    assert found["waits"]["trainer"]["train"] == pytest.approx(share)
    seconds = lines[-1]["ledger"]["device_seconds"] - before["ledger"]["device_seconds"]
    assert found["cost"]["per_step"] == pytest.approx(seconds / 10)
    assert found["cost"]["spent"] == pytest.approx(3600 * lines[-1]["compute"]["device_hours"])
    assert found["held_out"]["prompts"] > 0 and found["system"] is None


def test_health_of_an_environment_and_of_a_machine(page):
    found = get(page, f"/runs/{ids(page)['first']}/health")
    assert found["environment"]["seconds"] == pytest.approx(0.25)
    assert found["environment"]["tool_failures"] == pytest.approx(0.1 / 1.5)
    assert found["system"]["gpus"] == [{"busy": 0.9, "memory_used": 1, "memory_total": 2}]
    assert found["cost"] is None


def test_the_divergence_of_each_lag_is_the_mean_over_its_tokens(tmp_path):
    run = made_run(tmp_path / "run", n=8, steps=20)
    ages = [({"0": 10, "1": 30}, {"0": 0.1, "1": 0.4}), ({"1": 10}, {"1": 0.8}), ({"1": 5}, None)]
    with (run / "steps.jsonl").open("a") as file:
        for step, (histogram, kl) in enumerate(ages, start=21):
            staleness = {"mean": 1.0, "max": 1, "histogram": histogram, "kl": kl}
            file.write(json.dumps({"step": step, "staleness": staleness}) + "\n")
    page = Page(tmp_path)
    (key,) = ids(page).values()
    lags = get(page, f"/runs/{key}/health", last=3)["staleness"]["lags"]
    assert [(lag["lag"], lag["tokens"]) for lag in lags] == [(0, 10), (1, 45)]
    assert [lag["kl"] for lag in lags] == pytest.approx([0.1, (30 * 0.4 + 10 * 0.8) / 40])
