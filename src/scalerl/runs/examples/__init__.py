"""Curves that come with the package: the points of Figure 1 of the ScaleRL paper.

Khatri et al., "The Art of Scaling Reinforcement Learning Compute for LLMs", arXiv 2510.13786,
CC BY 4.0. Digitised from the figure: about ±0.001 in pass rate and ±1 % in compute, some points
missing.
"""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np

from scalerl.errors import InputError
from scalerl.runs.record import Run

_FILE = "paper-figure-1.json"


def load_example(name: str) -> Run:
    """The example of that name.

    >>> load_example("paper-8b")
    Run('paper-8b', 34 points, gpu_hours 1328..89367, score 0.4021..0.6465)
    """
    data = json.loads(files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    if name not in data["runs"]:
        raise InputError(f"no example {name!r}: there is {', '.join(data['runs'])}")
    run = data["runs"][name]
    return Run(
        name=name,
        compute=np.array(run["compute"], dtype=np.float64),
        score=np.array(run["score"], dtype=np.float64),
        x_kind="gpu_hours",
        x_name="gpu_hours",
        y_name="pass_rate",
        score_kind="validation",
        r0=run["r0"],
        group=run["group"],
        source=f"example:{name}",
        notes=(data["note"],),
    )
