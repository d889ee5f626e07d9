"""The live panel in a terminal that is resized: the terminal wraps what is on its screen anew, and
nothing of an old panel may stay."""

import io
import re

from rich.console import Console
from rich.text import Text

from scalerl.cli.live_view import framed, start_live


class Terminal(io.StringIO):
    """A screen that understands what rich writes, and wraps its lines anew when it is resized, as
    most terminals do."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        #: Logical lines: text between two line ends.
        self.lines = [""]
        self.row = 0

    def isatty(self):
        return True

    def write(self, text):
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            self._one(part)
        return len(text)

    def rows(self):
        """The rows of the screen, each with the number of its logical line."""
        return [
            (i, line[at : at + self.width])
            for i, line in enumerate(self.lines)
            for at in range(0, max(len(line), 1), self.width)
        ]

    def _one(self, part):
        if part == "\n":
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append("")
        elif part.endswith("A"):
            # Up by rows of the screen, not by logical lines.
            up = int(part[2:-1] or 1)
            rows = self.rows()
            here = max(k for k, (i, _) in enumerate(rows) if i == self.row)
            self.row = rows[max(here - up, 0)][0]
        elif part.endswith("K"):
            self.lines[self.row] = ""
        elif part.endswith("J"):
            self.lines, self.row = [""], 0
        elif part.endswith("H"):
            self.row = 0
        elif not part.startswith("\x1b") and part != "\r":
            self.lines[self.row] = part


def test_a_resized_terminal_keeps_one_panel():
    screen = Terminal(120)
    console = Console(file=screen, force_terminal=True, width=120, height=24, color_system=None)

    def panel():
        rows = [Text(f"row {i}") for i in range(4 if console.width > 100 else 7)]
        return framed("the run", rows, console.width)

    live = start_live(console, panel)
    console.print("a validation")
    for width in (70, 120, 90):
        console.width = screen.width = width
        live.refresh()
        shown = "\n".join(row for _, row in screen.rows())
        assert shown.count("the run") == 1, f"one panel at {width} columns:\n{shown}"
        assert shown.count("╰") == 1 and shown.count("a validation") == 1
        assert screen.lines[1].endswith("╮") and len(screen.lines[1]) == width
    live.stop()
