"""Checks of a model's files before the model is built.

`config.json` states the model's size, and building a model of a billion layers would never end. Its
sizes are therefore compared with the headers of the weight files, which take a millisecond to read.
Neither torch nor Transformers is imported.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError

#: Weights in one file.
WEIGHTS = "model.safetensors"
#: Names the file of each weight where there are several.
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
#: Files of a tokenizer that hold a JSON object.
TOKENIZER_JSON = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
#: Files of which a tokenizer needs at least one.
TOKENIZER_DATA = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
                  "tekken.json", "sentencepiece.bpe.model", "qwen.tiktoken")  # fmt: skip

#: Keys of config.json that count layers; one module is built for each.
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers")
#: Keys of config.json that are a dimension of some tensor or a number of modules.
SIZES = ("vocab_size", "hidden_size", "n_embd", "num_experts", "num_local_experts",
         "n_routed_experts", "num_labels")  # fmt: skip
#: Most layers where no weight files are there to compare with. Published models have up to 200.
MAX_LAYERS = 4096
#: Largest size where no weight files are there. Published vocabularies reach 262,144.
MAX_SIZE = 10_000_000
#: Bytes of a safetensors header; the safetensors library has the same limit.
MAX_HEADER = 100_000_000
AGAIN = "copy or download it again"
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,9})\.")
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
         "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8,
         "F8_E8M0": 8, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The shapes of all tensors in the weight files of a model, by name."""

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def layers(self) -> int | None:
        """Number of layers, from the indices in tensor names; None where no name has one."""
        found = [int(match[1]) for name in self.shapes if (match := _LAYER.search(name))]
        return max(found) + 1 if found else None

    @property
    def largest_dimension(self) -> int:
        return max((size for shape in self.shapes.values() for size in shape), default=0)

    @property
    def numbers(self) -> int:
        return sum(map(math.prod, self.shapes.values()))


def check_model(path: str) -> WeightFiles | None:
    """Refuse a directory with damaged files, or with a config.json that cannot belong to its
    weights. Returns the headers of the weight files; None without a directory or without
    safetensors."""
    folder = Path(path)
    if not folder.is_dir():
        return None
    weights = read_weight_files(folder)
    if (folder / CONFIG).is_file():
        check_sizes(read_object(folder / CONFIG), weights, f"model {path}")
    return weights


def check_sizes(config: Mapping[str, Any], weights: WeightFiles | None, what: str) -> None:
    """Refuse a config.json with sizes that its weights do not have, or that no model has."""
    # Quantised weights are stored packed, and a model's own code (auto_map) may use a layer several
    # times: then shapes and counts cannot be compared.
    compare = weights is not None and not config.get("quantization_config")
    layers = weights.layers if weights and compare and not config.get("auto_map") else None
    # At least 2, the default of num_labels: it is no dimension of a language model.
    largest = max(weights.largest_dimension, 2) if weights and compare else None
    for key, value in _whole_numbers(config):
        if key in LAYERS and value < 1:
            raise InputError(f"{what}: config.json says {key} = {value}: it must be at least 1")
        if key in LAYERS and value > (layers or MAX_LAYERS):
            there = f"its weights have {layers}" if layers else f"at most {MAX_LAYERS:,} are built"
            raise InputError(f"{what}: config.json says {key} = {value:,}, but {there}")
        if key in SIZES and value > (largest or MAX_SIZE):
            there = "no tensor of its weights has" if largest else "no known model has"
            raise InputError(
                f"{what}: config.json says {key} = {value:,}, but {there} a dimension above "
                f"{largest or MAX_SIZE:,}"
            )


def _whole_numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        # Not isinstance: True is an int too.
        if type(value) is int:
            yield key, value
        elif isinstance(value, dict):
            yield from _whole_numbers(value)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{file} is not valid JSON, but damaged or cut off: {AGAIN}") from None
    if not isinstance(found, dict):
        raise InputError(f"{file} holds no JSON object: {AGAIN}")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model; empty where its weights have another format."""
    if not (folder / INDEX).is_file():
        return [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else []
    names = read_object(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{folder / INDEX} has no weight_map of file names: {AGAIN}")
    # The last component only: an index must not lead out of its directory.
    return [folder / Path(name).name for name in dict.fromkeys(names.values())]


def read_weight_files(folder: Path) -> WeightFiles | None:
    """The headers of all weight files; None where there are no safetensors."""
    files = weight_files(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes |= _read_header(file)
    return WeightFiles(shapes) if files else None


def _read_header(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in a safetensors file, each checked against the file's size."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER):
                raise InputError(
                    f"{file}, of {size:,} bytes, is no whole safetensors file: {AGAIN}"
                )
            header = json.loads(opened.read(length))
    except OSError as error:
        raise InputError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} has a damaged header: {AGAIN}") from None
    if not isinstance(header, dict):
        raise InputError(f"{file} has a damaged header: {AGAIN}")
    shapes: dict[str, tuple[int, ...]] = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        try:
            shape = tuple(int(n) for n in about["shape"])
            start, end = (int(n) for n in about["data_offsets"])
            bits = math.prod(shape) * _BITS.get(about["dtype"], 8 * (end - start))
        except (TypeError, KeyError, ValueError):
            raise InputError(f"{file} has a damaged header at {name}: {AGAIN}") from None
        if end > size - 8 - length:
            raise InputError(f"{file} is cut off after {size:,} bytes, within {name}: {AGAIN}")
        if about["dtype"] in _BITS and (min(shape, default=0) < 0 or bits != 8 * (end - start)):
            raise InputError(f"{file} has a damaged header at {name}: {AGAIN}")
        shapes[name] = shape
    return shapes


def check_shapes(model: Any, weights: WeightFiles, what: str) -> None:
    """Refuse weights with other shapes than the model's, or with fewer numbers than it needs."""
    own = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for name, shape in own.items():
        found = weights.shapes.get(name, shape)
        if found != shape:
            raise InputError(
                f"{what}: the weight {name} has the shape {list(found)}, but by config.json it is "
                f"{list(shape)}"
            )
    needed = sum(map(math.prod, own.values()))
    if needed > weights.numbers:
        # A name is looked up for the message only: Transformers renames and joins some weights, so
        # that a missing name alone proves nothing.
        missing = next((name for name in own if name not in weights.shapes), "")
        raise InputError(
            f"{what}: its weights are {weights.numbers:,} numbers, but by config.json it has "
            f"{needed:,}" + (f": {missing} is missing" if missing else "")
        )


def tokenizer_problem(folder: Path) -> str | None:
    """What is wrong with the files of a tokenizer; None where no problem is found."""
    for name in TOKENIZER_JSON:
        if (folder / name).is_file():
            try:
                read_object(folder / name)
            except InputError as error:
                return str(error)
    if not any((folder / name).is_file() for name in TOKENIZER_DATA):
        return f"there is no {', '.join(TOKENIZER_DATA[:3])} in the directory"
    return None
