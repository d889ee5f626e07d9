"""Static pictures inside the page: SVG that takes its colours from the page's style sheet."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from scalerl.report.theme import THEMES, drawing, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _variables() -> dict[str, str]:
    """Colour of the light theme -> the style sheet's variable that follows light and dark."""
    t = THEMES["light"]
    table = {t.paper: "paper", t.ink: "ink", t.muted: "muted", t.faint: "faint", t.alarm: "alarm"}
    table |= {colour: f"c{i}" for i, colour in enumerate(t.runs)}
    return {colour: f"var(--{name})" for colour, name in table.items()}


def inline_svg(figure: Figure, prefix: str, description: str) -> str:
    """The figure (drawn in the light theme) as an element for the page. `prefix` keeps its ids
    apart from those of other pictures; `description` is read out in place of the picture."""
    with drawing("light"):
        return from_svg(render(figure, "svg", transparent=True), prefix, description)


def from_svg(svg: bytes, prefix: str, description: str) -> str:
    """The same of a picture that is there as SVG already."""
    text = svg.decode("utf-8")
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    # matplotlib's own style rule would apply to the whole page; the style sheet has it for us.
    body = re.sub(r"<style type=\"text/css\">.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", body)
    for colour, variable in _variables().items():
        body = re.sub(
            rf"(?<=[:\"] ){colour}|(?<=[:\"]){colour}", variable, body, flags=re.IGNORECASE
        )
    box = re.search(r'viewBox="[^"]+"', body)
    assert box is not None
    label = html.escape(description, quote=True)
    head = f'<svg class="plot" role="img" aria-label="{label}" {box.group(0)}>'
    return head + body[body.index(">") + 1 :].strip()
