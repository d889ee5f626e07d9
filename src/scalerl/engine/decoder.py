"""What stands between the engine and a model: rows that are read in, continued and dropped.

Three decoders have this interface: `ModelDecoder` runs any Hugging Face causal LM as it is;
`LlamaDecoder` (models/cpu/decode.py) and `NativeDecoder` (models/cpu) run the Llama-shaped
ones, several times faster on a CPU. The engine takes a fast one wherever that proves that it
computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from scalerl.models.rows import Compaction


class Decoder(Protocol):
    """Rows of a cache, one behind the other. Those below a `hold` stand still."""

    def prefill(self, prompts: Sequence[tuple[int, ...]], which: Sequence[int]) -> Tensor:
        """New rows at the end, row i with prompt which[i], each prompt read once; the logits (rows,
        words) of what follows."""
        ...

    def decode(self, token_B: Tensor) -> Tensor:
        """Append a token to every row; the logits of what follows."""
        ...

    def drop_rows(self, compaction: Compaction) -> None:
        """Some rows are dropped; the others close up."""
        ...

    def pause_rows(self) -> None:
        """The present rows stand still; new ones come behind them."""
        ...

    def resume_rows(self) -> None:
        """The rows that stood still go on; there are no others left."""
        ...
