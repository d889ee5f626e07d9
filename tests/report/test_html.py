from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import HOSTILE, climbing, declining, known, unknown

from scalerl.curves.compare import compare
from scalerl.curves.fit import fit, fit_all
from scalerl.curves.forecast import forecast
from scalerl.errors import InputError
from scalerl.report.files import slugs, write_whole
from scalerl.report.html import write_report

PAPER = "https://arxiv.org/abs/2510.13786"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """Checks that every element is closed where it should be, and collects what matters."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        values = dict(attrs)
        self.ids += [values["id"]] if values.get("id") else []  # type: ignore[list-item]
        for key in ("src", "href", "xlink:href", "action", "data", "srcset"):
            if values.get(key):
                self.loads.append(str(values[key]))
        assert not any(key.startswith("on") for key, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        if where == "script":
            self.scripts.append(data)
        elif where != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(paths: list[Path]) -> tuple[Page, str]:
    text = paths[0].read_text(encoding="utf-8")
    return Page(text), text


def test_report_writes_page_figures_and_numbers(tmp_path: Path) -> None:
    fits = [known("first"), known("second", seed=1)]
    out = tmp_path / "new" / "directory"
    paths = write_report(fits, out, command="scalerl report runs.csv -o out")
    assert [p.name for p in paths] == [
        "report.html",
        "report.md",
        "report.json",
        *(
            f"{n}.{k}"
            for n in ("fit-first", "fit-second", "comparison", "efficiency")
            for k in ("png", "svg", "pdf")
        ),
    ]
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in paths)
    page, _ = page_of(paths)
    assert "scalerl report runs.csv -o out" in page.words
    for part in ("Comparison", "Efficiency", "How to read this", "first", "The next doubling"):
        assert part in page.words
    numbers = json.loads((out / "report.json").read_text())
    assert [f["run"] for f in numbers["fits"]] == ["first", "second"]
    assert f"{fits[0].params['A']:.3f}" in page.words
    assert numbers["comparison"]["pairs"][0]["verdict"]
    assert len(numbers["efficiency"]["runs"]) == 2


def test_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page, text = page_of(write_report([known()], tmp_path))
    outside = [u for u in page.loads if not u.startswith("#") and not re.fullmatch(r"[\w.-]+", u)]
    assert outside == [PAPER]
    assert "default-src 'none'" in text
    assert "@import" not in text and "url(" not in re.sub(r"url\(#[\w-]+\)", "", text)
    links = [u for u in page.loads if re.fullmatch(r"[\w.-]+", u)]
    assert all((tmp_path / u).is_file() for u in links)
    assert len(page.ids) == len(set(page.ids))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    runs = [
        climbing(name, seed=i, notes=("<script>alert(2)</script>",)).replace(source="<b>here</b>")
        for i, name in enumerate(HOSTILE)
    ]
    paths = write_report(
        fit_all(runs), tmp_path / "out", title="<i>t</i>", command="x </code><script>alert(3)"
    )
    page, text = page_of(paths)
    assert page.seen.count("script") == 2
    assert not {"img", "i", "b"} & set(page.seen)
    assert "\u2028" not in text and "\u2029" not in text
    data = json.loads(page.scripts[0])
    assert data["runs"][0]["name"] == HOSTILE[0]
    assert "<script>alert(2)</script>" in page.words
    assert {p.parent for p in paths} == {tmp_path / "out"}
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert len({p.name.lower() for p in paths}) == len(paths)


def test_ceiling_is_never_a_fact_unless_identified(tmp_path: Path) -> None:
    f = unknown()
    page, _ = page_of(write_report([f], tmp_path))
    assert "ceiling is not identified" in page.words
    assert "not identified" in page.words
    assert f"{f.params['A']:.3f}" not in page.words.replace(" ", "")
    assert json.loads(page.scripts[0])["runs"][0]["ceiling"] is None


def test_alarm_is_the_first_thing_on_the_page(tmp_path: Path) -> None:
    f = declining()
    page, text = page_of(write_report([f], tmp_path))
    assert f.alarm is not None
    assert text.index('role="alert"') < text.index('class="lead"')
    assert f.alarm in page.words
    assert "No ceiling is quoted" in page.words
    assert not re.search(r"ceiling (of |A )?0\.", page.words, re.IGNORECASE)


def test_reader_without_scripts_gets_a_picture(tmp_path: Path) -> None:
    _, text = page_of(write_report([known("first"), unknown("second")], tmp_path))
    inside = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "<svg" in inside and "aria-label=" in inside
    assert "var(--c0)" in inside and "#0072b2" not in inside
    assert "prefers-color-scheme: dark" in text


def test_runs_on_different_axes_share_a_page_without_a_comparison(tmp_path: Path) -> None:
    fits = [known("hours"), fit(climbing("steps", x_kind="steps"))]
    page, _ = page_of(write_report(fits, tmp_path))
    data = json.loads(page.scripts[0])
    assert data["kinds"] == ["GPU-hours", "optimizer steps"]
    assert "Verdict" not in page.words
    assert not (tmp_path / "comparison.png").exists()


@pytest.mark.parametrize("law", ["power", "no-change"])
def test_other_laws_make_a_report(tmp_path: Path, law: str) -> None:
    fits = fit_all([climbing("a"), climbing("b", seed=1)], law=law)
    page, _ = page_of(write_report(fits, tmp_path))
    assert "not identified" in page.words


def test_given_forecasts_and_comparison_are_shown(tmp_path: Path) -> None:
    fits = [known("first"), known("second", seed=1)]
    forecasts = [forecast(f, at=[1e6, 2e6], target=[0.6], price=1.0, value=5.0) for f in fits]
    found = compare(fits, group_by=None, seed_sd=0.01)
    page, _ = page_of(write_report(fits, tmp_path, found, forecasts, title="My runs"))
    for part in ("My runs", "1M", "2M", "Targets", "Advice", "recipes, seeds allowed for"):
        assert part in page.words


def test_sixty_runs_make_a_small_page_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalerl.report.html.MAX_FIGURES", 2)
    fits = fit_all([climbing(f"lab/sweep/run-{i}", n=400, seed=i) for i in range(60)])
    found = compare(fits)
    before = time.process_time()
    paths = write_report(fits, tmp_path, comparison=found)
    assert time.process_time() - before < 60  # of CPU time: other programs run beside this one
    assert paths[0].stat().st_size < 3_000_000
    page, _ = page_of(paths)
    data = json.loads(page.scripts[0])
    assert len(data["runs"]) == 60
    assert all(len(r["x"]) <= 128 for r in data["runs"])
    assert sum(p.name.startswith("fit-") for p in paths) == 4


def test_directory_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(InputError) as caught:
        write_report([known()], blocked / "out")
    assert "\n" not in str(caught.value) and "cannot write" in str(caught.value)
    with pytest.raises(InputError, match="at least one"):
        write_report([], tmp_path)


def test_failed_write_leaves_the_old_file_and_no_remains(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_whole(target, b"old")
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory" / "x").write_text("")
    with pytest.raises(InputError):
        write_whole(tmp_path / "directory", b"data")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "directory"]


def test_file_names_stay_inside_and_apart() -> None:
    found = slugs([*HOSTILE, "CON", "a", "A", "a-2", ".hidden", "x" * 500])
    assert len({s.lower() for s in found}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9_][\w.-]*", s) and len(s) < 80 for s in found)
    assert not any(".." in s for s in found)


def test_rmse_is_that_of_the_points_and_the_curve_that_are_drawn(tmp_path: Path) -> None:
    """Worked out again from what the page's chart is drawn from."""
    c = np.geomspace(10.0, 1000.0, 60)
    wave = 0.3 + 0.3 / (1.0 + (100.0 / c) ** 1.5) + 0.04 * np.sin(3.0 * np.log(c))
    wandering = fit(c, wave, name="wandering", hi=600.0)
    for f in (known(), unknown(), declining(), wandering, fit(climbing("power"), law="power")):
        page, text = page_of(write_report([f], tmp_path))
        (run,) = json.loads(page.scripts[0])["runs"]
        x, y = (np.array(v, dtype=float) for v in run["used"])
        drawn = np.interp(np.log(x), np.log(run["x"]), np.array(run["median"], dtype=float))
        rmse = float(np.sqrt(np.mean((drawn - y) ** 2)))
        assert f.rmse == pytest.approx(rmse, abs=2e-4, rel=0.02), f.name
        assert f"<td>{f.rmse:.4f}</td>" in text
        assert json.loads((tmp_path / "report.json").read_text())["fits"][0]["rmse"] == f.rmse


def test_tables_of_many_runs_can_be_sorted_by_what_they_show(tmp_path: Path) -> None:
    fits = [known("b"), unknown("a"), declining("c")]
    page, text = page_of(write_report(fits[:2], tmp_path))
    keys = re.findall(r'<td data-key="([^"]*)">([^<]*)', text)
    ceilings = {shown.strip(): key for key, shown in keys}
    assert float(ceilings[f"{fits[0].params['A']:.3f}"]) == pytest.approx(fits[0].params["A"])
    assert ceilings["not identified"] == "", "stands last"
    assert "aria-sort" in page.scripts[1] and ".scroll > table" in page.scripts[1]
