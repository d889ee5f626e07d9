"""Loading of models and tokenizers: a directory, a Hugging Face id, or one shipped with scalerl.

Code that a model brings along runs only with `model.trust_remote_code = true`; there is never an
interactive question. Torch and Transformers are imported inside functions: resolving a path needs
neither. Importing Transformers takes seconds in each process of a run, and a replaced worker pays
it again: functions named `*_fast` do without it where a model is a plain Llama.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scalerl.errors import InputError
from scalerl.models.bare_tokenizer import BareTokenizer
from scalerl.models.model_files import (
    CONFIG,
    WeightFiles,
    check_model,
    check_shapes,
    check_sizes,
    read_object,
    tokenizer_problem,
)

#: Checkpoints that are shipped with scalerl.
SHIPPED = ("tiny", "tiny-noisy", "tiny-tools", "tiny-guess")


def model_path(name: str) -> str:
    """The path or hub id of a recipe's model; those in SHIPPED come with scalerl.

    >>> Path(model_path("tiny")).parent.name, model_path("HuggingFaceTB/SmolLM2-135M")
    ('checkpoints', 'HuggingFaceTB/SmolLM2-135M')
    """
    if name in SHIPPED:
        return str(Path(__file__).parent / "tiny" / "checkpoints" / name)
    if name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
        raise InputError(f"model.path={name}: there is no such directory")
    return str(Path(name).expanduser()) if name.startswith("~") else name


@contextmanager
def loading_errors(what: str, trust: bool) -> Iterator[None]:
    """Turn the exceptions of Transformers about a model into one-line InputErrors."""
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
        # Transformers reads .bin files with weights_only: torch refuses everything but tensors
        # before any code in the pickle runs.
        raise InputError(
            f"{what}: its weights are a pickle (.bin) that is damaged or holds more than tensors, "
            "which is not read: convert it to safetensors where you trust it"
        ) from None
    except Exception as error:
        # Damaged files make the libraries raise any type of exception, so its name is in the line.
        owner = "its own code" if trust else "it cannot be loaded: the library"
        kind = type(error).__name__
        raise InputError(f"{what}: {owner} raised {kind}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """The first line of an error; with the next one where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else type(error).__name__


def load_model(path: str, dtype: str, device: str, *, trust_remote_code: bool = False) -> Any:
    """A causal LM with weights in `dtype`, checked to be complete and finite."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    what = f"model {path}"
    weights = check_before(path, trust_remote_code)
    with loading_errors(what, trust_remote_code):
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=getattr(torch, dtype),
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
            )
        except RuntimeError:
            # Transformers prints mismatched shapes as a table on stderr; this names one of them.
            if weights is not None:
                from scalerl.models.meta_model import meta_model

                meta_model(path, dtype, trust_remote_code=trust_remote_code)
            raise
    # Transformers initialises missing weights at random, with only a warning.
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"{what}: {len(missing)} weights are missing, {missing[0]} among them: the checkpoint "
            "is damaged or of another model"
        )
    check_finite(model, path, dtype)
    return model.to(device)


def check_before(path: str, trust_remote_code: bool) -> WeightFiles | None:
    """Refuse a model with damaged files, or with a config.json that claims sizes it does not have
    (building it might never end). Returns the headers of its weight files, if it has any."""
    weights = check_model(path)
    if not Path(path).is_dir():
        from transformers import PretrainedConfig

        with loading_errors(f"model {path}", trust_remote_code):
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
    """Name of the first parameter with a NaN or an infinity; None where there is none."""
    return next((n for n, p in model.named_parameters() if not bool(p.isfinite().all())), None)


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer in a model's directory."""
    from transformers import AutoTokenizer

    what = f"tokenizer of {path}"
    if (Path(path) / CONFIG).is_file():
        # Transformers may build the config to find the tokenizer's class.
        check_sizes(read_object(Path(path) / CONFIG), None, what)
    try:
        with loading_errors(what, trust_remote_code):
            return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except InputError:
        if Path(path).is_dir() and (problem := tokenizer_problem(Path(path))):
            raise InputError(f"{what}: {problem}") from None
        raise


def load_generation_config(path: str) -> Any:
    """The model's generation config (numbers only, never code); None where it has none."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(path)
    except (OSError, ValueError):
        return None


def load_model_fast(
    path: str, dtype: str, device: str, *, trust_remote_code: bool = False, bare: bool = True
) -> Any:
    """`load_model`, or the same model without Transformers. `bare=False` where the caller needs
    more of the model than its parameters and a forward pass."""
    from scalerl.models.cpu.bare import BareConfig, BareLlama

    config = BareConfig.from_directory(path) if bare and dtype == "float32" else None
    if config is None:
        return load_model(path, dtype, device, trust_remote_code=trust_remote_code)
    meta_model_fast(path, dtype)  # refuses weights that do not fit the config
    model = BareLlama.load(config)
    check_finite(model, path, dtype)
    return model.to(device)


def meta_model_fast(path: str, dtype: str, *, trust_remote_code: bool = False) -> Any:
    """`meta_model`, or the same without Transformers: names and shapes, no weights."""
    import torch

    from scalerl.models.cpu.bare import BareConfig, BareLlama
    from scalerl.models.meta_model import meta_model

    config = BareConfig.from_directory(path)
    if config is None:
        return meta_model(path, dtype, trust_remote_code=trust_remote_code)
    what = f"model {path}"
    weights = check_model(path)
    with loading_errors(what, False), torch.device("meta"):
        shape = BareLlama(config).to(getattr(torch, dtype))
    if weights is not None:
        check_shapes(shape, weights, what)
    return shape


def load_tokenizer_fast(path: str, *, trust_remote_code: bool = False) -> Any:
    """`load_tokenizer`, or the same without Transformers."""
    bare = BareTokenizer.from_directory(path)
    return bare or load_tokenizer(path, trust_remote_code=trust_remote_code)


def load_generation_config_fast(path: str) -> Any:
    """`load_generation_config`; for a directory, the fields of its file."""
    file = Path(path) / "generation_config.json"
    if not Path(path).is_dir():
        return load_generation_config(path)
    try:
        fields = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return SimpleNamespace(**fields) if isinstance(fields, dict) else None


def resolve_device(name: str) -> str:
    """The device that a recipe names; "auto" is the GPU where torch finds one, else the CPU."""
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
