"""Draw docs/images/knob-map.svg: a study with a known truth, made from seed 0.

python docs/draw_knob_map.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent
TARGET = ROOT / "images" / "knob-map.svg"
sys.path.insert(0, str(ROOT.parent / "benchmarks"))

from made_study import made_study  # noqa: E402


def draw(target: Path = TARGET) -> None:
    with tempfile.TemporaryDirectory() as folder:
        study = made_study(Path(folder) / "study", variants=9, seeds=3, evals=60, steps=300)
        study.plot(str(target))


if __name__ == "__main__":
    draw()
