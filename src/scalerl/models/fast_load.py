"""Loading without Transformers where a model is a plain Llama, else through it (load.py).

Importing Transformers takes seconds in each process of a run, and a replaced worker pays it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scalerl.models.bare_tokenizer import BareTokenizer
from scalerl.models.load import (
    check_finite,
    load_generation_config,
    load_model,
    load_tokenizer,
    loading_errors,
)
from scalerl.models.model_files import check_model, check_shapes


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
