"""The internals of vLLM 0.32 that the engine reaches into: loading weights, the precision of the
head, recorded experts, and the logits processor that forces tokens. Import vLLM through
`vllm.import_vllm` before this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from scalerl.engine.interface import EngineSpec
from scalerl.errors import InputError
from scalerl.models.routing import Experts

#: Largest difference of an FP32 head's logits from ours, relative to the largest logit. A BF16 head
#: is 2e-3 away.
MAX_HEAD_GAP = 1e-4


def load_weights(runner: Any, weights: Mapping[str, Tensor], *, tied: bool, device: str) -> None:
    """Load new weights into vLLM's model.

    `reload_weights` and not the model's `load_weights`, which fails on a CPU in FP32 because the
    linear layers are packed there. It misses two things without an error, both handled here: a tied
    head keeps its old weights (log-probs are off by about 1), and on a CPU the experts of a mixture
    are left in a layout that their kernels do not read."""
    model = runner.get_model()
    if device == "cpu":
        # Without a kernel object this counts as the first load, which does convert the layout.
        for layer in moe_layers(model):
            layer.routed_experts.quant_method.moe_kernel = None
    runner.reload_weights(weights_iterator=iter(weights.items()))
    if tied:
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


def moe_layers(model: Any) -> list[Any]:
    """The mixture-of-experts layers of a model, in order."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    return [m for m in model.modules() if isinstance(m, MoERunner)]


@torch.no_grad()
def check_head(model: Any, spec: EngineSpec, version: str) -> None:
    """Raise an InputError unless vLLM computes the head in FP32, judged by its logits for random
    hidden states of the model's dtype: an override that a model class ignores raises nothing."""
    weight, processor = model.lm_head.weight, model.logits_processor
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, weight.shape[1], generator=generator)
    hidden = hidden.to(weight.device, getattr(torch, spec.dtype))
    found = model.compute_logits(hidden)
    if spec.devices > 1:  # this device has the rows of some tokens only
        own = model.lm_head.shard_indices
        found = found[:, own.org_vocab_start_index : own.org_vocab_end_index]
    wanted = hidden.float() @ weight.float().T[:, : found.shape[1]] * processor.scale
    if processor.soft_cap is not None:
        wanted = torch.tanh(wanted / processor.soft_cap) * processor.soft_cap
    gap = float((found.float() - wanted).abs().max() / wanted.abs().max())
    if found.dtype != torch.float32 or not gap <= MAX_HEAD_GAP:
        raise InputError(
            f"vLLM {version} does not compute the head of {spec.model} in FP32 (its logits are "
            f"{gap:.1g} off): set precision.generator_head and precision.trainer_head to model, or "
            "placement.engine=local"
        )


class ExpertRoutes:
    """The experts of each step's tokens, from vLLM's own capture of its routers."""

    def __init__(self, config: Any, model: Any) -> None:
        from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (
            RoutedExpertsCapturer,
            bind_routed_experts_capturer,
        )

        try:
            most = config.scheduler_config.max_num_batched_tokens
            self.capturer = RoutedExpertsCapturer(most, config)
            bind_routed_experts_capturer(model, self.capturer)
        except ValueError as error:
            raise InputError(
                "precision.routing=replay: vLLM does not report the experts of this model "
                f"({error}): set precision.routing=own, or placement.engine=local"
            ) from None
        self.layers = [m.layer_id for m in moe_layers(model)]

    def experts(self, start: int, end: int) -> Experts:
        """The experts of tokens start … end of the last step's batch."""
        found: Tensor = self.capturer.device_buffer[start:end, self.layers]
        return found.cpu().numpy().astype(np.int16)


class ForcedTokenProcessor(LogitsProcessor):  # type: ignore[misc]
    """Makes one token the only possible one, for the rows in which a token is forced.

    The engine sets `force[request] = token` between two steps; vLLM reports the row of each
    request. A forced token has log-prob 0 and the key-value cache is kept. The alternatives are not
    exact: stopping and continuing with a longer prompt recomputes the last block of the cache
    (log-probs off by 0.27), and vLLM's `thinking_token_budget` does not recognise a natural end of
    thinking when the phrase has words before it."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.force: dict[str, int] = {}
        self._row_of: dict[str, int] = {}
        self._at: dict[int, str] = {}

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Any sampling parameters are accepted."""

    def is_argmax_invariant(self) -> bool:
        return False  # a forced token is not the likeliest one

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests through vLLM's batch: removals first, then additions, then moves, as
        vLLM applies them."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._take(row)
        for row, params, _, _ in batch_update.added:
            self._take(row)
            name = (params.extra_args or {}).get("id")
            if name is not None:
                self._put(row, name)
        for a, b, how in batch_update.moved:
            first, second = self._take(a), self._take(b)
            if first is not None:
                self._put(b, first)
            if how is MoveDirectionality.SWAP and second is not None:
                self._put(a, second)

    def row(self, name: str) -> int:
        """The row of a request in the last step's batch."""
        return self._row_of[name]

    def apply(self, logits: Tensor) -> Tensor:
        asked = [(self._row_of[n], t) for n, t in self.force.items() if n in self._row_of]
        if asked:
            rows, tokens = torch.tensor(asked, device=logits.device).unbind(1)
            logits[rows] = float("-inf")
            logits[rows, tokens] = 0.0
        return logits

    def _put(self, row: int, name: str) -> None:
        self._at[row], self._row_of[name] = name, row

    def _take(self, row: int) -> str | None:
        name = self._at.pop(row, None)
        if name is not None and self._row_of.get(name) == row:
            del self._row_of[name]
        return name
