"""Models and tokenizers by the quickest way that there is: without Transformers, whose import takes
seconds in every process, where a model is plain enough; else through it (load.py, shape.py)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scalerl.models.bare_tokenizer import BareTokenizer
from scalerl.models.files import check_model, check_shapes
from scalerl.models.load import (
    check_finite,
    load_generation_config,
    load_model,
    load_tokenizer,
    one_line,
)


def quick_model(
    path: str, dtype: str, device: str, *, trust_remote_code: bool = False, bare: bool = True
) -> Any:
    """`load_model`, or the same model without Transformers. `bare=False` where somebody needs more
    of the model than its parameters and a forward pass."""
    from scalerl.models.cpu.bare import BareConfig, BareLlama

    config = BareConfig.of(path) if bare and dtype == "float32" else None
    if config is None:
        return load_model(path, dtype, device, trust_remote_code=trust_remote_code)
    quick_shape(path, dtype)  # refuses weights that the config does not fit
    model = BareLlama.load(config)
    check_finite(model, path, dtype)
    return model.to(device)


def quick_shape(path: str, dtype: str, *, trust_remote_code: bool = False) -> Any:
    """`meta_model`, or the same without Transformers: names and sizes, no weights."""
    import torch

    from scalerl.models.cpu.bare import BareConfig, BareLlama
    from scalerl.models.shape import meta_model

    config = BareConfig.of(path)
    if config is None:
        return meta_model(path, dtype, trust_remote_code=trust_remote_code)
    what = f"model {path}"
    weights = check_model(path)
    with one_line(what, False), torch.device("meta"):
        shape = BareLlama(config).to(getattr(torch, dtype))
    if weights is not None:
        check_shapes(shape, weights, what)
    return shape


def quick_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """`load_tokenizer`, or the same without Transformers."""
    bare = BareTokenizer.of(path)
    return bare or load_tokenizer(path, trust_remote_code=trust_remote_code)


def quick_generation_config(path: str) -> Any:
    """`load_generation_config`; of a directory, what the file says."""
    file = Path(path) / "generation_config.json"
    if not Path(path).is_dir():
        return load_generation_config(path)
    try:
        said = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return SimpleNamespace(**said) if isinstance(said, dict) else None
