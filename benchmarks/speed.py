"""How fast a fit is, beside the paper's procedure on the same points, and how cost grows.

python benchmarks/speed.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from record import save

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "curves"))
from simulate import PAPER, curve, random_law

from scalerl import Run, compare, fit, fit_all
from scalerl.curves import paper
from scalerl.curves.least_squares import fit_sigmoid


def seconds(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Best and median of several runs: other load comes and goes."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return {"best": min(times), "median": statistics.median(times), "repeats": repeats}


def with_intervals(c: np.ndarray, y: np.ndarray) -> None:
    f = fit(c, y)
    for name in ("A", "B", "C_mid"):
        f.interval(name)


def against_the_paper() -> dict[str, object]:
    c, y = curve(PAPER, 50_000.0, np.random.default_rng(0), n=100)
    ours = seconds(lambda: with_intervals(c, y), 30)
    run = Run("run", c, y, x_kind="gpu_hours", r0=PAPER.R_0)
    theirs = seconds(lambda: fit(run, method="paper", lo=0.0), 3)
    cells = fit(run, method="paper", lo=0.0)
    law = paper.Sigmoid(**cells.params)
    paper_sse = float(((law.value(c) - y) ** 2).sum())
    our_sse = fit_sigmoid(c, y, r0=PAPER.R_0).sse
    ratio = theirs["median"] / ours["median"]
    print(f"100 points, fit with intervals: ours {1e3 * ours['median']:.1f} ms, "
          f"paper's procedure {theirs['median']:.2f} s: {ratio:.0f} times faster")  # fmt: skip
    print(f"sum of squares: ours {our_sse:.6g}, paper's {paper_sse:.6g}")
    return {"ours": ours, "paper": theirs, "ratio": ratio, "sse": [our_sse, paper_sse]}


def growth() -> list[dict[str, float]]:
    rows = []
    for n in (25, 100, 200, 450, 1000, 10_000, 100_000):
        c, y = curve(PAPER, 50_000.0, np.random.default_rng(n), n=n)
        at = np.linspace(51_000.0, 100_000.0, min(n, 450))
        f = fit(c, y)
        row = {
            "points": n,
            "fit_ms": 1e3 * seconds(lambda c=c, y=y: with_intervals(c, y), 12)["median"],
            "forecasts": len(at),
            "forecast_ms": 1e3
            * seconds(lambda f=f, at=at: f.predict(at).quantiles([0.05, 0.5, 0.95]), 12)["median"],
        }
        rows.append(row)
        print(f"{n:>7} points: fit {row['fit_ms']:6.1f} ms, {len(at)} forecasts "
              f"{row['forecast_ms']:6.1f} ms")  # fmt: skip
    return rows


def many(count: int = 1000, points: int = 200) -> dict[str, float]:
    rng = np.random.default_rng(0)
    runs = [
        Run(f"run-{i}", *curve(random_law(rng), 5000.0, rng, n=points), x_kind="steps")
        for i in range(count)
    ]
    start = time.perf_counter()
    fits = fit_all(runs)
    middle = time.perf_counter()
    compare(fits)
    end = time.perf_counter()
    print(f"{count} runs x {points} points: fitted in {middle - start:.1f} s, "
          f"compared in {end - middle:.1f} s")  # fmt: skip
    return {"runs": count, "points": points, "fit_s": middle - start, "compare_s": end - middle}


def command_line() -> dict[str, object]:
    c, y = curve(PAPER, 50_000.0, np.random.default_rng(0), n=100)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.csv"
        rows = [f"{a:.0f},{b:.4f}" for a, b in zip(c, y, strict=True)]
        path.write_text("\n".join(["step,val_acc", *rows]))

        def call(*arguments: str) -> dict[str, float]:
            command = [sys.executable, "-m", "scalerl", *arguments]
            return seconds(lambda: subprocess.run(command, capture_output=True, check=True), 7)

        result = {"fit_csv": call("fit", str(path)), "help": call("--help")}
    for name, t in result.items():
        print(f"scalerl {name}: {t['median']:.2f} s (best {t['best']:.2f})")
    return result


if __name__ == "__main__":
    save("speed", {"against_paper": against_the_paper(), "growth": growth(), "many": many(),
                   "command_line": command_line()})  # fmt: skip
