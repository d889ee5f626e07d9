from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from made_runs import HOSTILE, climbing, declining, known, unknown
from matplotlib.figure import Figure
from matplotlib.text import Text

from scalerl.curves.compare import compare
from scalerl.curves.fit import fit
from scalerl.errors import InputError
from scalerl.report.comparison_figures import plot_comparison, plot_efficiency, spread
from scalerl.report.figures import plot_fit, plot_joint, plot_prediction
from scalerl.report.html import asset
from scalerl.report.theme import THEMES


def texts(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(Text) if isinstance(t, Text))


def test_fit_shows_points_held_out_points_ceiling_and_power_law() -> None:
    f = known()
    figure = plot_fit(f)
    lines = {str(line.get_label()): line for line in figure.axes[0].lines}
    assert len(np.asarray(lines["points fitted"].get_xdata())) == len(f.points)
    held = lines["points held out"]
    assert len(np.asarray(held.get_xdata())) == len(f.run) - len(f.points)
    assert held.get_markerfacecolor() == "none"
    assert any(label.startswith("power law, A =") for label in lines)
    shown = texts(figure)
    assert f"ceiling {f.params['A']:.3f}" in shown
    assert "fitted | forecast" in shown
    assert "C_mid" in shown
    assert "GPU-hours" in figure.axes[0].get_xlabel()
    assert figure.axes[0].get_xlim()[1] >= 1.3 * f.run.compute[-1]


def test_ceiling_that_is_not_identified_is_never_a_number() -> None:
    f = unknown()
    assert not f.identified
    shown = texts(plot_fit(f))
    assert "ceiling not\nidentified" in shown
    assert f"{f.params['A']:.3f}" not in shown


def test_alarm_is_a_banner_and_takes_the_ceiling_away() -> None:
    f = declining()
    assert f.alarm is not None
    shown = texts(plot_fit(f))
    assert "ALARM  declining" in shown
    assert "no ceiling" in shown
    assert f"{f.params['A']:.3f}" not in shown


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_files_are_the_same_every_time(tmp_path: Path, theme: str, suffix: str) -> None:
    f = known()
    for name in ("a", "b"):
        plot_fit(f, tmp_path / (name + suffix), theme)  # type: ignore[arg-type]
    first, second = ((tmp_path / (n + suffix)).read_bytes() for n in ("a", "b"))
    assert first == second
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a" + suffix, "b" + suffix]
    if suffix == ".svg":
        ElementTree.fromstring(first)
        assert b"<dc:date>" not in first


def test_other_suffixes_and_themes_are_refused() -> None:
    f = known()
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        plot_fit(f, "picture.bmp")
    with pytest.raises(InputError, match="light or dark"):
        plot_fit(f, theme="sepia")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_be_drawn(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.svg"
    plot_fit(known(name), path)
    ElementTree.fromstring(path.read_bytes())


def test_zero_compute_sits_on_the_left_edge() -> None:
    run = climbing()
    with_zero = run.replace(
        compute=np.concatenate([[0.0], run.compute]), score=np.concatenate([[0.3], run.score])
    )
    figure = plot_fit(fit(with_zero))
    assert "C = 0" in texts(figure)
    points = next(line for line in figure.axes[0].lines if line.get_label() == "points fitted")
    assert np.asarray(points.get_xdata())[0] == pytest.approx(figure.axes[0].get_xlim()[0])


@pytest.mark.parametrize("law", ["power", "no-change"])
def test_other_laws_can_be_drawn(law: str) -> None:
    shown = texts(plot_fit(fit(climbing(), law=law)))
    assert "ceiling not\nidentified" in shown


def test_prediction_draws_few_points_as_bars_and_many_as_a_band() -> None:
    f = known()
    ahead = f.predict([2e5, 4e5])
    few = texts(plot_prediction(ahead))
    assert all(f"{median:.3f}" in few for median in ahead.median)
    many = plot_prediction(f.predict(np.geomspace(1e3, 1e6, 60)))
    assert len(many.axes[0].collections) == 2
    assert "ALARM" in texts(plot_prediction(declining().predict([1000.0])))


def test_few_runs_are_named_at_their_lines_and_many_in_a_legend() -> None:
    two = compare(known("first"), known("second", seed=1))
    figure = plot_comparison(two)
    assert not figure.legends
    assert "first\nceiling" in texts(figure)
    eight = compare([known(f"run-{i}", seed=i) for i in range(8)])
    figure = plot_comparison(eight)
    assert len(figure.legends[0].get_texts()) == 8


def test_efficiency_labels_carry_the_slope() -> None:
    figure = plot_efficiency(compare(known("first"), known("second", seed=1)))
    assert texts(figure).count("B = ") == 2
    assert "GPU-hours" in figure.axes[0].get_xlabel()


def test_joint_picture_has_contours_and_says_not_identified() -> None:
    assert len(plot_joint(known()).axes[0].collections) == 3
    assert "not identified" in texts(plot_joint(unknown()))
    with pytest.raises(InputError):
        plot_joint(fit(climbing(), law="power"))


def test_labels_keep_their_order_and_distance() -> None:
    at = spread([0.5, 0.51, 0.1, 0.5], gap=0.1, low=0.0, high=0.6)
    gaps = np.diff(np.sort(at))
    assert (gaps > 0.0999).all()
    assert at[2] == min(at) and at[1] == max(at)


def test_importing_the_report_does_not_import_matplotlib() -> None:
    code = (
        "import sys, scalerl.report.terminal, scalerl.report.html, scalerl.report.figures; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["light", "dark"])
def test_no_colour_is_used_twice_and_all_can_be_told_apart(name: str) -> None:
    theme = THEMES[name]
    assert len(theme.runs) == 14 and theme.colour(14) == theme.colour(99) == theme.muted
    lab = [_cielab(each) for each in theme.runs]
    apart = [float(np.linalg.norm(a - b)) for i, a in enumerate(lab) for b in lab[:i]]
    assert min(apart) > 20.0, "distance in CIELAB; 2.3 is just noticeable"
    css = asset("report.css")
    for i, colour in enumerate(theme.runs):
        assert f"--c{i}: {colour};" in css


def _cielab(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.array(to_xyz) @ c / np.array([0.9505, 1.0, 1.089])
    fx, fy, fz = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])
