"""Log-probs of the tokens of a batch under a model: by the packed pass of models/cpu where model
and length allow it, else by the model's own forward pass over flat rows (models/flat.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from scalerl.algorithm.batch import TokenBatch
from scalerl.models.cpu.packed import BUDGET, LONGEST, PackedLlama, PassWeights
from scalerl.models.flat import FlatAttention, flat_hidden, installed
from scalerl.models.head import Precision, head_of
from scalerl.models.logprobs import chunked_logprobs
from scalerl.models.routing import ExpertReplay
from scalerl.models.rows import FlatRows
from scalerl.trainer.micro import Episodes, Sizes, flat_rows


@dataclass(frozen=True, slots=True, eq=False)
class ScoredTokens:
    """Log-probs and entropies of the tokens of a part of a batch; 0 for context."""

    logprobs_N: Tensor
    entropy_N: Tensor
    #: Tokens that went through the model.
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class AccumulatorHead:
    """The head's weight in one gradient accumulator (`PackedLlama.accumulating`)."""

    weight: Tensor
    bias: None = None


class Scorer:
    """Computes log-probs under a model."""

    def __init__(
        self,
        model: nn.Module,
        precision: Precision,
        temperature: float,
        *,
        replay: bool = False,
    ) -> None:
        self.model = model
        self.temperature = temperature
        self.head = head_of(model, precision)
        self.packed = PackedLlama.from_model(model)
        #: Sends tokens to the experts that the generator chose (mixtures of experts).
        self.replay = ExpertReplay(model) if replay else None
        self.device = next(model.parameters()).device
        if self.packed is None:
            _ = self.attention

    @cached_property
    def attention(self) -> FlatAttention | None:
        """The attention of flat rows; None for a model that must go row by row. With a packed pass
        it is made for the first batch with longer rows."""
        return FlatAttention.from_model(self.model)

    def packs(self, batch: TokenBatch) -> bool:
        """Whether the packed pass takes the whole batch."""
        longest = int(batch.position_N.max()) + 1 if len(batch.position_N) else 0
        return self.packed is not None and longest <= LONGEST

    def budget(self, batch: TokenBatch, token_budget: int) -> int:
        """The largest number of tokens in a micro-batch of this batch."""
        return min(token_budget, BUDGET) if self.packs(batch) else token_budget

    def micro_batches(self, batch: TokenBatch, token_budget: int) -> list[Episodes]:
        """The episodes of each micro-batch."""
        return self._cut(Sizes(batch), range(len(batch)), batch, token_budget)

    def _cut(
        self, sizes: Sizes, episodes: Sequence[int], batch: TokenBatch, token_budget: int
    ) -> list[Episodes]:
        alone = not self.packs(batch) and self.attention is None
        return sizes.cut(episodes, 0 if alone else self.budget(batch, token_budget))

    @contextmanager
    def learning(self, batch: TokenBatch) -> Iterator[Sequence[PassWeights | None]]:
        """The forward and backward passes of a step: gives the gradient accumulators of the packed
        pass, or None alone, where gradients go to the parameters at once."""
        if self.packed is not None and self.packs(batch):
            with self.packed.accumulating() as accumulators:
                yield accumulators
        else:
            with installed(self.attention, self.model):
                yield (None,)

    def score(self, part: TokenBatch, weights: PassWeights | None = None) -> ScoredTokens:
        """Log-probs of every token that the engine wrote; differentiable. `weights` is one of the
        gradient accumulators of the step (`learning`)."""
        rows = flat_rows(part)
        if self.replay is not None:
            self.replay.give([rows.experts], len(rows.ids_F), self.device)
        found_M, entropy_M = self.score_rows(rows.to(self.device), weights)
        at = part.written_N.nonzero()[:, 0].to(self.device)
        zeros_N = torch.zeros(len(part.ids_N), dtype=found_M.dtype, device=self.device)
        return ScoredTokens(
            zeros_N.index_put((at,), found_M),
            zeros_N.index_put((at,), entropy_M),
            len(rows.ids_F),
        )

    def score_rows(
        self, rows: FlatRows, weights: PassWeights | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the rows' scored tokens."""
        head = self.head
        if self.packed is not None and rows.longest <= LONGEST:
            hidden = self.packed.hidden(rows, weights)
            if weights is not None:
                head = replace(head, module=AccumulatorHead(weights.head))
        else:
            hidden = flat_hidden(self.model, rows, self.attention)
        hidden = hidden.index_select(0, rows.source_M)
        return chunked_logprobs(hidden, head, rows.target_M, self.temperature)

    @torch.no_grad()
    def score_probe(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Log-probs of the tokens after the first, at temperature 1."""
        self.model.eval()
        rows = FlatRows.from_tokens(
            ids_N=np.array(tokens, np.int64),
            position_N=np.arange(len(tokens)),
            row_N=np.minimum(np.arange(len(tokens)), 1),  # a prompt of one token
            parent_R=np.array([-1, 0]),
            scored_N=np.arange(len(tokens)) > 0,
        )
        if self.replay is not None:
            self.replay.give([None], len(rows.ids_F), self.device)
        with self._scoring_probe():
            found, _ = self.score_rows(rows.to(self.device))
        return tuple(found.float().tolist())

    @contextmanager
    def _scoring_probe(self) -> Iterator[None]:
        """A pass without gradients at temperature 1."""
        given, self.temperature = self.temperature, 1.0
        try:
            with installed(None if self.packed is not None else self.attention, self.model):
                yield
        finally:
            self.temperature = given

    @torch.no_grad()
    def logprobs(self, batch: TokenBatch, token_budget: int) -> Tensor:
        """Log-probs of all tokens, on the CPU. The model is left in evaluation mode."""
        self.model.eval()
        out_N = torch.zeros(len(batch.ids_N))
        parts = self.micro_batches(batch, token_budget)
        with installed(None if self.packs(batch) else self.attention, self.model):
            for episodes in parts:
                part, at_N = batch.take(episodes)
                out_N[at_N] += self.score(part).logprobs_N.float().cpu()
        return out_N
