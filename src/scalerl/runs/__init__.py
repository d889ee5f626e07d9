"""The record of a run, and the importers that make one of anybody's logs."""

from scalerl.runs.load import load_run, load_runs
from scalerl.runs.record import ComputeKind, Run

__all__ = ["ComputeKind", "Run", "load_run", "load_runs"]
