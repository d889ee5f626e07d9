import sys
from pathlib import Path

for folder in ("benchmarks", "tests/report", "tests/runs"):
    sys.path.insert(0, str(Path(__file__).parents[2] / folder))
