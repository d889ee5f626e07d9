"""Make docs/images/report-light.png and report-dark.png: the top of a report, as Chromium shows it.

python docs/shoot_report.py
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from scalerl import fit, load_run
from scalerl.report.html import write_report

IMAGES = Path(__file__).parent / "images"
TITLE = "ScaleRL 8B: forecast at 50k GPU-hours, checked to 100k"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
#: Values of Blink's preferredColorScheme.
SCHEMES = {"light": 1, "dark": 0}


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("no Chromium here: make page installs it")
    with tempfile.TemporaryDirectory() as folder:
        run = fit(load_run("example:paper-8b"), hi=50_000)
        page = write_report([run], folder, title=TITLE)[0]
        for name, scheme in SCHEMES.items():
            subprocess.run(
                [program, *FLAGS, "--hide-scrollbars", "--window-size=1280,1120",
                 f"--blink-settings=preferredColorScheme={scheme}",
                 f"--screenshot={IMAGES / f'report-{name}.png'}", page.as_uri()],
                check=True, capture_output=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
