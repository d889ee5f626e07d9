"""The curve that every fixture holds, and checks that any loaded run must pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from scalerl.runs import Run

FIXTURES = Path(__file__).parent.parent / "fixtures"
_spec = importlib.util.spec_from_file_location("make_fixtures", FIXTURES / "make_fixtures.py")
assert _spec is not None
assert _spec.loader is not None
_made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_made)

STEPS = np.array(_made.STEPS, dtype=float)
LOW = np.array([_made.curve(s) for s in _made.STEPS])
HIGH = np.array([_made.curve(s, 0.7) for s in _made.STEPS])


def assert_valid(run: Run) -> None:
    """What the rest of the package may rely on."""
    assert len(run) >= 1
    assert len(run.compute) == len(run.score)
    assert run.compute.dtype == run.score.dtype == np.float64
    assert np.isfinite(run.compute).all()
    assert np.isfinite(run.score).all()
    assert (np.diff(run.compute) > 0).all()
    assert run.compute[0] >= 0
    assert run.score.min() >= 0
    assert run.score.max() <= 1
    if run.n_eval is not None:
        assert len(run.n_eval) == len(run)
        assert (run.n_eval >= 1).all()
    assert run.name
    assert all("\n" not in note for note in run.notes)
