"""Models and tokenizers by name: a directory, a Hugging Face id, or one that comes with scalerl.
What a model brings as code of its own is run only where the recipe says so
(`model.trust_remote_code`), and nobody is asked in the middle of anything.

Torch and Transformers are imported when they are needed: a path is known without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def one_line(what: str, trust: bool) -> Iterator[None]:
    """What Transformers says of a model that it cannot load, in one line."""
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        if "trust_remote_code" in str(error) and not trust:
            raise InputError(
                f"{what} brings Python code of its own, which is not run: read that code, and if "
                "you trust it set model.trust_remote_code=true, or take another model"
            ) from None
        raise InputError(f"{what}: {_first_line(error)}") from None
    except Exception as error:
        if not trust:
            raise
        raise InputError(f"{what}: its own code raised {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def load_model(path: str, dtype: str, device: str, *, trust_remote_code: bool = False) -> Any:
    """A causal LM, its weights converted to `dtype`; all of them are finite."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    with one_line(f"model {path}", trust_remote_code):
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
        )
    check_finite(model, path, dtype)
    return model.to(device)


def check_finite(model: Any, path: str, dtype: str) -> None:
    wrong = non_finite(model)
    if wrong is not None:
        raise InputError(
            f"model {path}: the weight {wrong} holds numbers that are not finite (NaN or inf) in "
            f"{dtype}: the checkpoint is damaged or was saved after a run had diverged; take "
            "another one"
        )


def non_finite(model: Any) -> str | None:
    """The first parameter with a number that is not finite; None where all are."""
    return next((n for n, p in model.named_parameters() if not bool(p.isfinite().all())), None)


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer that is kept beside a model."""
    from transformers import AutoTokenizer

    with one_line(f"tokenizer of {path}", trust_remote_code):
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


def load_generation_config(path: str) -> Any:
    """How the model's makers generate with it (a file of numbers, never code); None where they do
    not say."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path)
    except (OSError, ValueError):
        return None


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
