"""Log-probs of given completions under a model: by the packed pass of models/cpu where model and
length allow it, else by the model's own forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scalerl.models.cpu.packed import BUDGET, LONGEST, PackedLlama, PassWeights
from scalerl.models.cpu.packing import PackedRows
from scalerl.models.head import Precision, final_hidden, head_of
from scalerl.models.logprobs import chunked_logprobs
from scalerl.models.routing import ExpertReplay
from scalerl.models.rows import PromptRows
from scalerl.trainer.micro import MicroBatch, micro_batches, pad


@dataclass(frozen=True, slots=True, eq=False)
class ScoredTokens:
    """Log-probs and entropies of M completion tokens."""

    logprobs_M: Tensor
    entropy_M: Tensor
    #: Row and column of each token in the padded batch.
    place_M: tuple[Tensor, Tensor]
    #: Tokens that went through the model, padding included.
    tokens: int

    def logprobs_BT(self, rows: int, width: int) -> Tensor:
        """The log-probs as a padded matrix, with zeros as padding."""
        shape = (rows, width)
        empty = torch.zeros(shape, dtype=self.logprobs_M.dtype, device=self.logprobs_M.device)
        return empty.index_put(self.place_M, self.logprobs_M)


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

    def budget(self, groups: Sequence[PromptRows], token_budget: int) -> int:
        """The largest number of tokens in a micro-batch of these rows."""
        return min(token_budget, BUDGET) if self.packs(groups) else token_budget

    def micro_batches(self, groups: Sequence[PromptRows], token_budget: int) -> list[MicroBatch]:
        budget = self.budget(groups, token_budget)
        return micro_batches(groups, budget, packed=self.packs(groups))

    def score(
        self, groups: Sequence[PromptRows], weights: PassWeights | None = None
    ) -> ScoredTokens:
        """Log-probs of every completion token, row by row; differentiable. `weights` is one of the
        gradient accumulators of the step (`PackedLlama.accumulating`)."""
        place: tuple[Tensor, Tensor]
        head = self.head
        if self.packed is not None and self.packs(groups):
            packed = PackedRows.from_groups(groups, self.packed.shape)
            hidden = self.packed.hidden(packed, weights).index_select(0, packed.source_M)
            if weights is not None:
                head = replace(head, module=AccumulatorHead(weights.head))
            target, place, tokens = packed.target_M, packed.place_M, len(packed.ids_N)
        else:
            ids, mask, rows, columns, place = self._padded(groups)
            hidden = final_hidden(self.model, ids, attention_mask=mask)[rows, columns]
            target, tokens = ids[rows, columns + 1], ids.numel()
        found, entropy = chunked_logprobs(hidden, head, target, self.temperature)
        return ScoredTokens(found, entropy, place, tokens)

    @torch.no_grad()
    def logprobs(
        self, groups: Sequence[PromptRows], token_budget: int
    ) -> list[npt.NDArray[np.float32]]:
        """Log-probs of every row, in order. The model is left in evaluation mode."""
        self.model.eval()
        out = [np.zeros(len(c), dtype=np.float32) for group in groups for c in group.completions]
        for part in self.micro_batches(groups, token_budget):
            found = self.score(part.groups).logprobs_M.float().cpu().numpy()
            ends = np.cumsum([len(out[i]) for i in part.rows])
            for i, end in zip(part.rows, ends, strict=True):
                out[i][:] = found[end - len(out[i]) : end]
        return out

    def _padded(
        self, groups: Sequence[PromptRows]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The input of the model's own pass (`pad`), and the place of each completion token. Sets
        the experts of that pass, where routing is replayed."""
        ids, mask, rows, columns = (t.to(self.device) for t in pad(groups))
        if self.replay is not None:
            experts = [e for g in groups for e in g.experts or [None] * len(g)]
            self.replay.give(experts, ids.shape[1], self.device)
        starts = [len(g.prompt) - 1 for g in groups for _ in g.completions]
        place = (rows, columns - torch.tensor(starts, device=self.device)[rows])
        return ids, mask, rows, columns, place

    def packs(self, groups: Sequence[PromptRows]) -> bool:
        return self.packed is not None and all(group.longest <= LONGEST for group in groups)
