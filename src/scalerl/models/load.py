"""Models and tokenizers by name: a directory, a Hugging Face id, or one that comes with scalerl.
What a model brings as code of its own is never run.

Torch and Transformers are imported when they are needed: a path is known without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalerl.errors import InputError

#: The checkpoints that come with scalerl.
SHIPPED = ("tiny", "tiny-noisy")


def model_path(name: str) -> str:
    """Where a recipe's model is; "tiny" and "tiny-noisy" come with scalerl.

    >>> Path(model_path("tiny")).parent.name, model_path("HuggingFaceTB/SmolLM2-135M")
    ('checkpoints', 'HuggingFaceTB/SmolLM2-135M')
    """
    if name in SHIPPED:
        return str(Path(__file__).parent / "tiny" / "checkpoints" / name)
    if name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
        raise InputError(f"model.path={name}: there is no such directory")
    return str(Path(name).expanduser()) if name.startswith("~") else name


def load_model(path: str, dtype: str, device: str) -> Any:
    """A causal LM, its weights converted to `dtype`."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise InputError(f"model {path}: {str(error).splitlines()[0]}") from None
    return model.to(device)


def load_tokenizer(path: str) -> Any:
    """The tokenizer that is kept beside a model."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer of {path}: {str(error).splitlines()[0]}") from None


def resolve_device(name: str) -> str:
    """The device a recipe means: "auto" is the GPU where torch has one."""
    import torch

    there = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if there else "cpu"
    if name.startswith("cuda") and not there:
        raise InputError(
            f"placement.device={name}, but torch finds no GPU here: set placement.device=auto or "
            "cpu, or install a torch build for your GPU"
        )
    return name
