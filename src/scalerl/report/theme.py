"""How pictures look: one accent, the Okabe-Ito colours for many runs, light and dark."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from scalerl.errors import InputError
from scalerl.report import words
from scalerl.report.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]
ThemeName = Literal["light", "dark"]
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DPI = 160


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture. The first seven colours of `runs` are those of Okabe and Ito, which
    differ for colour-blind readers as well; each run also has its own marker."""

    paper: str
    ink: str
    muted: str
    faint: str
    alarm: str
    runs: tuple[str, ...]

    @property
    def accent(self) -> str:
        return self.runs[0]

    @property
    def second(self) -> str:
        return self.runs[1]

    def colour(self, i: int) -> str:
        """The colour of the i-th run. No colour is used twice: runs beyond the last are grey."""
        return self.runs[i] if i < len(self.runs) else self.muted


THEMES: dict[str, Theme] = {
    "light": Theme(
        paper="#ffffff",
        ink="#1b1f24",
        muted="#5b6570",
        faint="#e3e6ea",
        alarm="#b3261e",
        runs=(
            *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d5359"),
            *("#7b3294", "#7f3b08", "#7fa800", "#e0157f", "#1f2f8f", "#00b8c4", "#b8a878"),
        ),
    ),
    "dark": Theme(
        paper="#14171a",
        ink="#e8eaed",
        muted="#9aa4ae",
        faint="#2c3238",
        alarm="#ff8a80",
        runs=(
            *("#56b4e9", "#e69f00", "#2fc09a", "#e39ac5", "#f0e442", "#ff7f50", "#c0c6cc"),
            *("#a678e8", "#b5651d", "#9ad13c", "#ff4fa3", "#5f7cff", "#3fe0f0", "#8c9450"),
        ),
    ),
}


def get_theme(theme: str) -> Theme:
    if theme not in THEMES:
        raise InputError(f"no theme {theme!r}: choose light or dark")
    return THEMES[theme]


@contextmanager
def drawing(theme: str) -> Iterator[Theme]:
    """Draw and save inside this: fonts, colours, and nothing in the file that changes by itself."""
    import matplotlib

    t = get_theme(theme)
    style: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "text.color": t.ink,
        "axes.edgecolor": t.muted,
        "axes.labelcolor": t.ink,
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "axes.linewidth": 0.8,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "xtick.color": t.muted,
        "ytick.color": t.muted,
        "figure.facecolor": t.paper,
        "savefig.facecolor": "auto",
        "legend.frameon": False,
        # Text stays text, so that it can be searched and read out.
        "svg.fonttype": "none",
        # Ids in the file are hashes; the salt is random by default, and files would differ.
        "svg.hashsalt": "scalerl",
        # A name such as "lr=$x$" is shown as it is.
        "text.usetex": False,
        "text.parse_math": False,
        "path.simplify": True,
    }
    with matplotlib.rc_context(style):
        yield t


def new_figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure of one pair of axes, without the global state of pyplot."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # pyplot would keep every figure in memory until it is closed, and is not safe in threads.
    fig = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    return fig, fig.add_subplot()


def freeze_layout(fig: Figure) -> Figure:
    """Lay the figure out once and for all: what is written of it several times need not be laid out
    each time. (With an engine left, be it "none", every file would be drawn twice.)"""
    fig.draw_without_rendering()
    fig.set_layout_engine(None)
    return fig


def compute_axis(ax: Axes, x_kind: str, theme: Theme) -> None:
    """A log axis of compute with SI suffixes, its kind named."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    # Labels at 1, 2 and 5 fit two and a half decades; over more, powers of ten alone.
    subs: tuple[float, ...] = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    if high / low < 8:
        subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: words.compute(v)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(f"{words.KIND[x_kind]}, log scale")
    ax.grid(axis="y", color=theme.faint, linewidth=0.8)


def score_limits(ax: Axes, scores: Array, share: float) -> None:
    """An axis of pass rates that holds these, with a share of their span as room around them."""
    # At least 0.02: the noise of nearly equal scores must not fill the axis.
    pad = share * max(float(np.ptp(scores)), 0.02)
    # Pass rates lie between 0 and 1; the rest is room for whole points at the ends.
    ax.set_ylim(max(float(scores.min()) - pad, -0.02), min(float(scores.max()) + pad, 1.02))


def note(ax: Axes, x: float, y: float, text: str, theme: Theme, **how: Any) -> None:
    """A remark in small, muted type; `how` are options of matplotlib's text."""
    ax.text(x, y, text, **{"fontsize": 8, "color": theme.muted, **how})


def render(fig: Figure, suffix: str, transparent: bool = False) -> bytes:
    """The picture as bytes, the same for the same figure. Call inside `drawing`."""
    import warnings

    out = BytesIO()
    form = suffix.removeprefix(".").lower()
    # A date or a version in the file would make equal figures differ.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {"Software": None})
    colour = "none" if transparent else "auto"
    with warnings.catch_warnings():
        # A run's name may hold characters that no font here has: they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        fig.savefig(out, format=form, dpi=DPI, metadata=metadata, facecolor=colour)
    return out.getvalue()


def save(fig: Figure, path: str | Path | None) -> Figure:
    """Write the figure, in the format of the path's suffix, if there is a path. Call inside
    `drawing`."""
    if path is not None:
        suffix = Path(path).suffix.lower()
        if suffix not in (".png", ".svg", ".pdf"):
            raise InputError(f"a figure is written as .png, .svg or .pdf, not {Path(path).name!r}")
        write_whole(path, render(fig, suffix))
    return fig


# -- pictures inside the page ----------------------------------------------------------------------


def _colour_variables() -> dict[str, str]:
    """Colour of the light theme -> the style sheet's variable that follows light and dark."""
    t = THEMES["light"]
    table = {t.paper: "paper", t.ink: "ink", t.muted: "muted", t.faint: "faint", t.alarm: "alarm"}
    table |= {colour: f"c{i}" for i, colour in enumerate(t.runs)}
    return {colour: f"var(--{name})" for colour, name in table.items()}


def inline_svg(figure: Figure, prefix: str, description: str) -> str:
    """The figure (drawn in the light theme) as an element for the page. `prefix` keeps its ids
    apart from those of other pictures; `description` is read out in place of the picture."""
    with drawing("light"):
        return svg_element(render(figure, "svg", transparent=True), prefix, description)


def svg_element(svg: bytes, prefix: str, description: str) -> str:
    """The same of a picture that is there as SVG already."""
    text = svg.decode("utf-8")
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # matplotlib's own style rule would apply to the whole page; the style sheet has it for us.
    body = re.sub(r"<style type=\"text/css\">.*?</style>", "", body, flags=re.DOTALL)
    # Several pictures share a page, and an id may be there only once.
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", body)
    # The page switches between light and dark by these variables.
    for colour, variable in _colour_variables().items():
        body = re.sub(
            rf"(?<=[:\"] ){colour}|(?<=[:\"]){colour}", variable, body, flags=re.IGNORECASE
        )
    box = re.search(r'viewBox="[^"]+"', body)
    assert box is not None
    label = html.escape(description, quote=True)
    head = f'<svg class="plot" role="img" aria-label="{label}" {box.group(0)}>'
    return head + body[body.index(">") + 1 :].strip()
