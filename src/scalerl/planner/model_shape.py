"""The shape of a model: what decides the memory, the products and the bytes of a token.

Read from `config.json` of a model on this machine, or from `models.toml`; neither needs torch.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError

#: Shapes that come with the package.
TABLE = Path(__file__).with_name("models.toml")
#: Bytes of a number, by dtype.
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer with gated feed-forward layers, dense or a mixture of experts.

    >>> shape = ModelShape.named("meta-llama/Llama-3.1-8B-Instruct")
    >>> round(shape.parameters / 1e9, 2), shape.cache_numbers
    (8.03, 65536)
    """

    name: str
    layers: int
    hidden: int
    #: Width of a feed-forward layer; of a mixture, of one expert.
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    #: Longest sequence in tokens.
    context: int
    #: Whether the head is the embedding.
    tied: bool
    #: Experts in all, and those that a token goes through; 1 and 1 for a dense model.
    experts: int = 1
    active_experts: int = 1

    @property
    def _attention(self) -> int:
        return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)

    def _layers(self, experts: int) -> int:
        norms = 2 * self.hidden
        router = self.hidden * self.experts if self.experts > 1 else 0
        expert = 3 * self.hidden * self.intermediate
        return self.layers * (self._attention + router + experts * expert + norms)

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the head."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self._layers(self.experts) + self.embedding * (1 if self.tied else 2)

    @property
    def block_parameters(self) -> int:
        """Parameters in a token's matrix products, without the head."""
        return self._layers(self.active_experts)

    @property
    def active_parameters(self) -> int:
        """Parameters in a token's matrix products, with the head."""
        return self.block_parameters + self.embedding

    @property
    def cache_numbers(self) -> int:
        """Numbers in the key-value cache of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def attention_products(self) -> int:
        """Multiply-adds of attention for each pair of tokens: scores and values."""
        return 2 * self.layers * self.heads * self.head_dim

    @staticmethod
    def named(name: str) -> ModelShape:
        """The shape of a model, by the directory it is in or by its Hugging Face id."""
        folder = Path(name)
        if (folder / "config.json").is_file():
            return _from_config(name, folder / "config.json")
        if folder.suffix == ".json" and folder.is_file():
            return _from_config(name, folder)
        table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
        if name not in table:
            near = difflib.get_close_matches(name, table, n=1)
            hint = f"did you mean {near[0]}? Or " if near else ""
            raise InputError(
                f"the shape of model {name} is not known: {hint}give model.path=DIRECTORY with its "
                "config.json"
            )
        row = table[name]
        row.pop("parameters")
        return ModelShape(name, **row)


def _from_config(name: str, path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    config = config.get("text_config") or config
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        experts = _first(config, ("num_local_experts", "num_experts", "n_routed_experts")) or 1
        width = config.get("moe_intermediate_size") if experts > 1 else None
        return ModelShape(
            name,
            layers=config["num_hidden_layers"],
            hidden=hidden,
            intermediate=width or config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocabulary=config["vocab_size"],
            context=config.get("max_position_embeddings") or 1 << 20,
            tied=bool(config.get("tie_word_embeddings")),
            experts=experts,
            active_experts=config.get("num_experts_per_tok") or 1 if experts > 1 else 1,
        )
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} does not describe a transformer that can be planned (it lacks {error})"
        ) from None


def _first(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[n] for n in names if config.get(n)), None)
