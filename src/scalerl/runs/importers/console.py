"""What a training job printed: the lines of metrics among everything else in a console log.

Four kinds of lines are read, wherever in a line they begin (after a time, a level, Ray's
`(TaskRunner pid=1)`) and whatever stands between them:

    step:20 - critic/score/mean:0.41 - val-core/gsm8k/acc/mean@16:0.38        verl
    {'loss': 0.01, 'reward': 0.4, 'epoch': 0.31}                              Hugging Face, TRL
    {"system/step": 20, "val/all/acc": 0.38}                                  ROLL, and others
    Step 20 | Time: 34.5s | Reward: 0.41                                      names with numbers

A dict of TRL has no step: it is the number that the progress bar last showed. Before other dicts
stands a step (slime: `rollout 20: {...}`). Names with numbers are read by `printed_pairs.py`.
Nothing is executed: dicts are read as JSON or by `ast.literal_eval`. Colours are taken out. Lines
that are none of these are passed over, and one that is cut off is as well.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from scalerl.errors import InputError
from scalerl.runs.importers import FALLBACK, LIKELY, Importer, by_suffix
from scalerl.runs.importers.delimited import looks_delimited
from scalerl.runs.importers.json_logs import opens_list, opens_object
from scalerl.runs.importers.printed_pairs import PairReader, step_before
from scalerl.runs.importers.text_files import Lines, is_text
from scalerl.runs.limits import Meter
from scalerl.runs.table import Table, flatten, from_rows, to_float

#: A file is a console log if one of this many first lines is a line of metrics. Loading a large
#: model prints thousands of lines before the first step.
MAX_SNIFFED_LINES = 50_000
#: A longer dict is no line of metrics.
MAX_DICT = 200_000
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r"(?:^|[\s)\]|:>])step:(\d+)(?= - )")
# What tqdm draws: `12/500 [01:02<40:11, 4.9s/it]`.
_BAR = re.compile(r"(\d+)/(\d+) \[\d+:\d+")
# np.float64(0.5), tensor(0.5, device='cuda:0'), array(0.5): the number inside.
_WRAPPED = re.compile(
    r"(?:np\.|numpy\.|torch\.)?(?:float|int)?(?:\d+|tensor|array)\(([^(),]+)(?:,[^()]*)?\)"
)
# Python prints these, but neither JSON's parser nor `ast.literal_eval` reads them.
_NOT_A_NUMBER = re.compile(r"(?<=[:,\[\s])[+-]?(?:nan|inf)(?=[,}\]\s])")


def looks_printed(path: Path) -> bool:
    """Whether lines of metrics are among the first lines of a text file."""
    pairs = PairReader()
    with closing(iter(Lines(path))) as lines:
        for line in islice(lines, MAX_SNIFFED_LINES):
            if any(_row(piece, pairs) is not None for piece in _pieces(line)):
                return True
    return False


def read_console(path: Path, name: str) -> Table:
    """The table of what was printed."""
    lines = Lines(path)
    rows: list[dict[str, object]] = []
    bars: dict[str, list[tuple[int, int]]] = {}
    stepless = 0
    meter = Meter(path)
    pairs = PairReader()
    for line in lines:
        for piece in _pieces(line):
            row = _row(piece, pairs)
            if row is not None:
                stepless += "epoch" in row and not any("step" in key for key in row)
                rows.append(row)
                meter.add(len(row))
            elif "/" in piece and (bar := _BAR.search(piece)):
                seen = bars.setdefault(bar[2], [])
                # A bar is drawn many times between two steps.
                if not seen or seen[-1][1] != int(bar[1]):
                    seen.append((len(rows), int(bar[1])))
    if not rows:
        raise InputError(
            f"{path}: what a job printed, without a line of metrics that can be read, such as "
            "`step=20 val_acc=0.38`: give the log of metrics, or write its points as CSV: "
            "step,val_acc"
        )
    notes = [f"{len(rows)} lines of metrics among what was printed"]
    if stepless and bars:
        # Evaluations have bars of their own, which are short and come again.
        longest = max(bars.values(), key=lambda bar: len({n for _, n in bar}))
        _count_by_bar(rows, longest, notes)
    return Table(name, from_rows(rows, path), str(path), notes)


def _count_by_bar(
    rows: list[dict[str, object]], bar: list[tuple[int, int]], notes: list[str]
) -> None:
    """Each row without a step gets the number that the longest progress bar showed before it."""
    at, now = 0, None
    for i, row in enumerate(rows):
        while at < len(bar) and bar[at][0] <= i:
            now = bar[at][1]
            at += 1
        if now is not None:
            row.setdefault("step", now)
    notes.append("steps are those of the progress bar")


def _pieces(line: str) -> Iterator[str]:
    """What a terminal would have shown in turn on this line: a progress bar rewrites its own."""
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    for piece in line.split("\r") if "\r" in line else (line,):
        if piece:
            yield piece


def _row(piece: str, pairs: PairReader) -> dict[str, object] | None:
    if "step:" in piece and (start := _STEP.search(piece)):
        return _pairs(piece, start)
    begin, end = piece.find("{"), piece.rfind("}")
    if begin < 0 or end - begin < 4 or end - begin > MAX_DICT or piece[begin + 1] not in "'\"":
        return pairs.row(piece)
    row = _dict(piece[begin : end + 1])
    step = step_before(piece[:begin])
    if row and step is not None and not any("step" in key for key in row):
        row["step"] = step
    return row


def _pairs(piece: str, start: re.Match[str]) -> dict[str, object]:
    row: dict[str, object] = {"step": int(start[1])}
    for pair in piece[start.end() :].rstrip().split(" - "):
        key, colon, text = pair.rpartition(":")
        value = _number(text) if colon and key else None
        if value is not None:
            row[key.strip()] = value
    return row


def _number(text: str) -> float | None:
    wrapped = _WRAPPED.fullmatch(text.strip()) if text.endswith(")") else None
    value = to_float(wrapped[1] if wrapped else text)
    return None if value != value else value


def _dict(text: str) -> dict[str, object] | None:
    """The numbers of a dict that was printed; None where it is no dict of at least two of them."""
    if "(" in text:
        text = _WRAPPED.sub(r"\1", text)
    if "nan" in text or "inf" in text:
        text = _NOT_A_NUMBER.sub("null", text)
    value = _json(text)
    if value is None:
        try:
            value = ast.literal_eval(text.replace(": null", ": None"))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return None
    if not isinstance(value, dict):
        return None
    row: dict[str, object] = {}
    try:
        for key, cell in flatten(value):
            # A number in quotes is one too: newer trainers print them so.
            number = cell if type(cell) in (int, float) else to_float(cell)
            if number == number:
                row[str(key)] = number
    except RecursionError:
        return None
    return row if len(row) > 1 else None


def _json(text: str) -> object:
    """As JSON, with its own quotes or, where a dict has no others, with Python's."""
    if text[1] == "'":
        if '"' in text or "\\" in text:
            return None
        text = text.replace("'", '"')
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _sniff(path: Path, head: bytes) -> float:
    # The first tests are cheap; the last ones read the file, up to MAX_SNIFFED_LINES of it.
    if not is_text(head) or opens_object(head) or opens_list(head):
        return 0.0
    if looks_delimited(path):
        return 0.0
    if looks_printed(path):
        return LIKELY
    # Its error says what to do. A file that is called a table has errors of its own.
    return 2 * FALLBACK if not _is_table(path) and _is_prose(path) else 0.0


def _is_prose(path: Path) -> bool:
    """Whether most of the first lines are several words, as no row of a table is."""
    with closing(iter(Lines(path))) as lines:
        words = [len(line.split()) for line in islice(lines, 40) if line.strip()]
    return bool(words) and sorted(words)[len(words) // 2] >= 3


_is_named_log = by_suffix(".log", ".out", ".txt", ".err")
_is_table = by_suffix(".csv", ".tsv")

IMPORTER = Importer(
    read=lambda path: [read_console(path, path.stem)],
    sniff=_sniff,
    # Of files with these names only few hold metrics.
    is_log=lambda path: _is_named_log(path) and looks_printed(path),
)
