"""Models and tokenizers by name: a directory, a Hugging Face id, or one that comes with scalerl.
What a model brings as code of its own is run only where the recipe says so
(`model.trust_remote_code`), and nobody is asked in the middle of anything.

Torch and Transformers are imported when they are needed: a path is known without them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.models.files import (
    CONFIG,
    WeightFiles,
    check_model,
    check_sizes,
    read_object,
    tokenizer_problem,
)

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
    except InputError:
        raise
    except (OSError, ValueError, ImportError) as error:
        if "trust_remote_code" in str(error) and not trust:
            raise InputError(
                f"{what} brings Python code of its own, which is not run: read that code, and if "
                "you trust it set model.trust_remote_code=true, or take another model"
            ) from None
        raise InputError(f"{what}: {_first_line(error)}") from None
    except pickle.UnpicklingError:
        # Read with weights_only: torch refuses everything but tensors, before anything runs.
        raise InputError(
            f"{what}: its weights are a pickle (.bin) that is damaged or holds more than tensors, "
            "which is not read: convert it to safetensors where you trust it"
        ) from None
    except Exception as error:
        # Damaged files make the libraries raise anything: what it is belongs into the line.
        owner = "its own code" if trust else "it cannot be loaded: the library"
        kind = type(error).__name__
        raise InputError(f"{what}: {owner} raised {kind}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """The first line of an error, and the next where that only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else type(error).__name__


def load_model(path: str, dtype: str, device: str, *, trust_remote_code: bool = False) -> Any:
    """A causal LM, its weights converted to `dtype`; all of them are finite."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    what = f"model {path}"
    weights = check_before(path, trust_remote_code)
    with one_line(what, trust_remote_code):
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=getattr(torch, dtype),
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
        except RuntimeError:
            # Shapes that do not fit are in a table on standard error: one of them is named here.
            if weights is not None:
                from scalerl.models.shape import meta_model

                meta_model(path, dtype, trust_remote_code=trust_remote_code)
            raise
    # Transformers draws what is missing at random, and says so in a warning.
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"{what}: {len(missing)} weights are missing, {missing[0]} among them: the checkpoint "
            "is damaged or of another model"
        )
    check_finite(model, path, dtype)
    return model.to(device)


def check_before(path: str, trust_remote_code: bool) -> WeightFiles | None:
    """Refuse a model whose files are damaged, or whose config.json claims sizes that it does not
    have: building it would never end. Returns the headers of its weight files, if it has any."""
    weights = check_model(path)
    if not Path(path).is_dir():
        from transformers import PretrainedConfig

        with one_line(f"model {path}", trust_remote_code):
            config, _ = PretrainedConfig.get_config_dict(path)
        check_sizes(config, None, f"model {path}")
    return weights


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

    what = f"tokenizer of {path}"
    if (Path(path) / CONFIG).is_file():
        # The tokenizer's class may be taken from it.
        check_sizes(read_object(Path(path) / CONFIG), None, what)
    try:
        with one_line(what, trust_remote_code):
            return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except InputError:
        if Path(path).is_dir() and (problem := tokenizer_problem(Path(path))):
            raise InputError(f"{what}: {problem}") from None
        raise


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
