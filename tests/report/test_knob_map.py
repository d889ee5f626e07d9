"""The picture of the knob map."""

import math

import pytest

from scalerl.report.knob_map import plot_knob_map
from scalerl.study.knobs import Knob


def knob(name, region, y, x, sure=True, width=0.02):
    ends = None if x is None else (x - 0.2, x + 0.2)
    return Knob(name, {}, y, (y - width, y + width), x, ends, region, None, None, sure)


KNOBS = [
    knob("better", "ceiling", 0.06, 0.0),
    knob("worse", "ceiling", -0.08, 0.3, sure=False),
    knob("quicker", "speed", 0.0, -0.7),
    knob("sluggish", "speed", 0.005, 0.7),
    knob("no-matter", "neither", 0.001, 0.01),
    knob("open", "undecided", 0.02, 0.1, width=0.5),
    knob("apart", "ceiling", -0.05, None),
]


@pytest.fixture(scope="module")
def drawn():
    return plot_knob_map(KNOBS, "mine")


def marks(figure):
    """Shape and face of every mark, the reference's last."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", "")]
    return [(line.get_marker(), line.get_markerfacecolor()) for line in lines]


def test_regions_are_told_by_shape_and_the_family_by_filling(drawn):
    found = marks(drawn)
    assert [shape for shape, _ in found[:-1]] == ["^", "v", "<", ">", "s", "x", "v"]
    assert found[-1][0] == "o"
    assert found[1][1] == "#ffffff" != found[0][1]
    said = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert said == ["moves the ceiling", "moves the speed", "neither", "undecided",
                    "hollow: for itself alone"]  # fmt: skip


def test_every_knob_is_named_inside_the_frame_and_names_lie_apart(drawn):
    axes = drawn.axes[0]
    names = {k.variant for k in KNOBS} | {"reference"}
    texts = [text for text in axes.texts if text.get_text() in names]
    assert {text.get_text() for text in texts} == names
    drawn.canvas.draw()
    frame = axes.get_window_extent()
    boxes = [text.get_window_extent() for text in texts]
    for i, box in enumerate(boxes):
        assert frame.x0 - 3 <= box.x0 and box.x1 <= frame.x1 + 3, texts[i].get_text()
        for other in boxes[:i]:
            wide = min(box.x1, other.x1) - max(box.x0, other.x0)
            high = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert wide < 3 or high < 3


def test_an_open_interval_does_not_flatten_the_others(drawn):
    low, high = drawn.axes[0].get_ylim()
    assert low == -high and high < 0.3


def test_the_axis_of_compute_is_in_times(drawn):
    labels = {t.get_text(): x for t, x in zip(drawn.axes[0].get_xticklabels(),
                                              drawn.axes[0].get_xticks(), strict=True)}  # fmt: skip
    assert labels["×1"] == 0 and labels["÷2"] == pytest.approx(-math.log(2))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_it_is_written_as_other_figures_are(tmp_path, suffix):
    plot_knob_map(KNOBS, "mine", tmp_path / f"map.{suffix}", theme="dark")
    assert (tmp_path / f"map.{suffix}").stat().st_size > 1000


def test_long_names_are_cut():
    figure = plot_knob_map([knob("optimiser.lr=" + "9" * 60, "neither", 0.0, 0.0)], "r" * 70)
    assert max(len(text.get_text()) for text in figure.axes[0].texts) < 30
    assert len(figure.axes[0].get_title(loc="left")) < 50
