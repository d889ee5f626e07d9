"""How long a study of 50 runs × 200 evaluations takes to be compared and reported, and how large
its page is.

    python benchmarks/report.py [--variants 10] [--seeds 5] [--evals 200] [--steps 1000]

Seconds are of the processor, not of the clock, so that other work on the machine does not count:
first what the runs show (stability, fits, comparison, knob map, records), then the page, its twin
and the figures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from made_study import made_study
from record import save
from scalerl import Study
from scalerl.report.study_page import write_study_report
from scalerl.report.study_report_data import collect


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evals", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("-o", "--out", type=Path, help="of the result, as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        made_study(path / "study", args.variants, args.seeds, args.evals, args.steps)
        start = time.process_time()
        found = collect(Study(path / "study"))
        compared = time.process_time()
        files = write_study_report(found, path / "out")
        written = time.process_time()
        result = {
            "runs": args.variants * args.seeds,
            "evaluations": args.evals,
            "steps": args.steps,
            "cpu_seconds": {
                "compared": round(compared - start, 2),
                "written": round(written - compared, 2),
                "all": round(written - start, 2),
            },
            "page_megabytes": round(files[0].stat().st_size / 1e6, 2),
            "files": len(files),
            "regions": {k["variant"]: k["region"] for k in found.found["knobs"]},
        }
    print(result)
    save("report", result, args.out)


if __name__ == "__main__":
    main()
