"""The notebook in examples/ runs as it stands, and its stored outputs are what it prints."""

import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "forecast.ipynb"
#: Seconds for a cell: a safety limit.
LIMIT = 600
#: Bytes of the file: it is in every clone.
MAX_SIZE = 150_000
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
AGAIN = f"jupyter execute --inplace examples/{NOTEBOOK.name}"


def outputs(cell):
    """The outputs of a cell as text; of a picture that it is there."""
    found = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        picture = "image/png" in data
        found.append("picture" if picture else data.get("text/plain", output.get("text", "")))
    return found


def alike(old, new):
    """The same words, and numbers that differ by rounding or by small changes of the statistics:
    a notebook that is off by more is to be executed again."""
    assert NUMBER.sub("#", old) == NUMBER.sub("#", new), AGAIN
    before, now = ([float(n) for n in NUMBER.findall(text)] for text in (old, new))
    assert now == pytest.approx(before, rel=0.05, abs=0.02), AGAIN


def test_it_runs_and_prints_what_is_stored():
    pytest.importorskip("ipykernel", reason="needs ipykernel and nbclient")
    nbclient = pytest.importorskip("nbclient", reason="needs ipykernel and nbclient")
    nbformat = pytest.importorskip("nbformat")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    again = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        again,
        timeout=LIMIT,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    ).execute()
    for old, new in zip(stored.cells, again.cells, strict=True):
        if "timed" in old.metadata.get("tags", ()):
            html = [o["data"]["text/html"] for o in new.outputs if "text/html" in o["data"]]
            assert len(old.outputs) == len(new.outputs) and "ended at step 3" in html[-1]
        else:
            for a, b in zip(outputs(old), outputs(new), strict=True):
                alike(a, b)


def test_it_is_small_and_knows_no_machine():
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text.encode()) < MAX_SIZE
    assert "/home/" not in text and "/root" not in text and "/tmp/" not in text
