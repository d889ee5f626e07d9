"""Links to themselves, directories that go, names and ids that are no text, paths in answers."""

import io
import os
import shutil
import zipfile

import pytest
from made_records import made_run
from serving import Page, quote

from made_study import made_study
from scalerl.errors import InputError
from scalerl.serve.sources import OwnRun
from scalerl.serve.watchdog import read

#: A log of another framework.
CSV = "step,val_acc\n" + "".join(f"{i},0.{i}\n" for i in range(10, 30))
#: Names of runs, in the bytes of the file system.
NAMES = [b"caf\xff", b"new\nline", b"back\\slash", b'quo"te', b"x" * 240, b"\xf0\x9f\x98\x80"]


def everything(page):
    """Every answer about every run and study."""
    paths = ["/api/runs", "/api/about", "/api/studies", "/healthz"]
    entries = list(page.catalogue.entries)
    for key in entries:
        paths += [f"/api/runs/{key}{rest}" for rest in ("", "?axis=flops", "/inside?step=40")]
        paths += [f"/api/runs/{key}/diff?with={key}"]
        paths += [f"/api/export/{file}?run={key}" for file in ("data.csv", "data.json")]
    for key in entries[:2]:  # these take a second each
        paths += [f"/api/export/{file}?run={key}" for file in ("figure.svg", "report.zip")]
    for key in list(page.catalogue.studies):
        paths += [f"/api/studies/{key}", f"/api/studies/{key}/report.zip"]
    found = {path: page.ask(path) for path in paths}
    for key in entries:
        found[f"fit {key}"] = page.ask("/api/fit", {"run": key, "quick": True})
    found["compare"] = page.ask("/api/compare", {"runs": entries[:12] or ["x"], "quick": True})
    for path, answer in found.items():
        assert answer.status in (200, 400, 404), (path, answer.text)
    return found


def loops(folder):
    """Links that lead to themselves, alone and in a circle."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "self").symlink_to("self")
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    (folder / "log.csv").symlink_to("log.csv")


def test_a_link_to_itself_leaves_everything_else_on_the_page(tmp_path):
    made_run(tmp_path / "runs" / "good", n=12, steps=40)
    loops(tmp_path / "runs")
    loops(tmp_path / "runs" / "below")
    bad = made_run(tmp_path / "runs" / "bad", n=12, steps=40)
    for name in ("steps.jsonl", "lock", "status.json", "recipe.toml"):
        (bad / name).unlink(missing_ok=True)
        (bad / name).symlink_to(name)
    for name in ("evals.jsonl", "study.toml", "recipes", "runs"):
        place = tmp_path / "runs" / f"no {name}"
        place.mkdir()
        (place / name).symlink_to(name)
    page = Page(tmp_path / "runs")
    assert {name for name, run in page.runs().items() if run["points"]} == {"good", "bad"}
    everything(page)
    (tmp_path / "late").symlink_to("late")
    with pytest.raises(InputError):
        Page(tmp_path / "late")


def test_a_directory_that_goes_between_the_list_and_the_question(tmp_path):
    runs = tmp_path / "runs"
    made_run(runs / "gone", n=12, steps=40)
    made_run(runs / "replaced", n=12, steps=40)
    made_study(runs / "study", variants=2, seeds=1, evals=12, steps=40)
    (runs / "log.csv").write_text(CSV)
    page = Page(runs)
    assert len(page.runs()) == 5 and len(page.catalogue.studies) == 1
    shutil.rmtree(runs / "gone")
    shutil.rmtree(runs / "replaced")
    (runs / "replaced").write_text("a file now")
    (runs / "log.csv").unlink()
    shutil.rmtree(runs / "study")
    everything(page)
    for source in page.catalogue._sources.values():  # before the next search has noticed
        assert read(source, True).runs is not None
    page.refresh()
    assert page.runs() == {}
    shutil.rmtree(runs)
    page.refresh()
    (left,) = page.runs().values()
    assert left["problem"] == "runs: no such file or directory" and not left["points"]


def test_one_source_that_fails_does_not_keep_the_others_from_being_read(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        made_run(tmp_path / name, n=12, steps=40)
    refresh = OwnRun.refresh

    def fails(self):
        if self.place.name.endswith("a"):
            raise ZeroDivisionError("in a reader")
        return refresh(self)

    monkeypatch.setattr(OwnRun, "refresh", fails)
    runs = Page(tmp_path).runs()
    assert runs["b"]["points"] == runs["c"]["points"] == 12
    assert "ZeroDivisionError" in runs["a"]["problem"]


def test_no_answer_has_a_path_of_this_machine(tmp_path):
    runs = tmp_path / "runs"
    made_run(runs / "a good one", n=12, steps=40)
    (runs / "bad.csv").write_text("a,b\n1,x\n")
    (runs / "broken.json").write_text('{"log_history": [')
    (runs / "binary.db").write_bytes(b"SQLite format 3\0" + bytes(90))
    (runs / "empty.jsonl").touch()
    (runs / "large.csv").touch()
    os.truncate(runs / "large.csv", 4_000_000_000)
    os.mkfifo(runs / "pipe.csv")
    made_study(runs / "study", variants=2, seeds=1, evals=12, steps=40)
    shutil.copytree(runs / "study", runs / "broken study")
    (runs / "broken study" / "study.toml").write_text("recipe = [")
    shutil.copytree(runs / "study", runs / "torn study")
    for recipe in (runs / "torn study" / "recipes").glob("*.toml"):
        recipe.write_text("[")
    page = Page(runs)
    assert page.runs()["bad.csv"]["problem"].startswith("bad")
    problems = {each["where"]: each["problem"] for each in page.ask("/api/studies").json()}
    assert problems["runs/study"] is None and "runs/broken study" in problems["runs/broken study"]
    for path, answer in everything(page).items():
        data = answer.body
        if path.partition("?")[0].endswith(".zip") and answer.status == 200:
            pack = zipfile.ZipFile(io.BytesIO(data))
            data = b"".join(pack.read(name) for name in pack.namelist())
        assert str(tmp_path).encode() not in data, (path, data[:400])


def test_names_that_are_no_text_are_answered(tmp_path):
    for name in NAMES:
        made_run(tmp_path / os.fsdecode(name), n=12, steps=40)
    page = Page(tmp_path)
    assert len(page.catalogue.entries) == len(NAMES)
    for path, answer in everything(page).items():
        assert answer.status in (200, 400), (path, answer.text)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    made_run(path / "good", n=12, steps=40)
    return Page(path)


@pytest.mark.parametrize("key", ["\ud800", "\0", "..", "../..", "x" * 60_000, "", "%", "é", "a/b"])
def test_ids_that_are_none_are_not_found(page, key):
    good = next(iter(page.catalogue.entries))
    spelled = quote(key, safe="", errors="surrogatepass")
    paths = [
        f"/api/runs/{spelled}/inside",
        f"/api/studies/{spelled}/report.zip",
        f"/api/runs/{spelled}/diff?with={good}",
        f"/api/runs/{good}/diff?with={spelled}",
        f"/api/export/data.csv?run={spelled}",
        f"/api/export/{spelled}.csv?run={good}",
        f"/static/{spelled}",
    ]
    if key:
        paths += [f"/api/runs/{spelled}", f"/api/studies/{spelled}"]
        paths += [f"/api/runs/{good}/inside?step={spelled}"]
    for path in paths:
        assert page.ask(path).status in (400, 404), path
    assert page.ask("/api/fit", {"run": key}).status == 404
    assert page.ask("/api/compare", {"runs": [key]}).status == 404
    for field in ("axis", "from", "to", "budget", "target", "level", key or "x"):
        found = page.ask("/api/fit", {"run": good, field: key or "x"})
        assert found.status in (400, 413), (field, found.text)
        assert "\n" not in found.json()["error"]
