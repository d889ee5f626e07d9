"""vLLM's model from the inside: weights that are put into it, the precision of its head, and the
experts that a mixture's tokens were sent to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalerl.engine.interface import EngineSpec
from scalerl.errors import InputError
from scalerl.models.routing import Experts

#: How far logits of an FP32 head may be from ours, of the largest. A BF16 head is 2e-3 away.
NEAR = 1e-4


def put(runner: Any, weights: Mapping[str, Tensor], *, tied: bool, device: str) -> None:
    """New weights, in what else vLLM 0.32 makes of them, too: `reload_weights` leaves a tied head
    as it was, and on a CPU a mixture's experts in a layout that its kernels do not read, both
    without a word."""
    model = runner.get_model()
    if device == "cpu":
        for layer in moe_layers(model):  # as if this were the first load, which does lay them out
            layer.routed_experts.quant_method.moe_kernel = None
    runner.reload_weights(weights_iterator=iter(weights.items()))
    if tied:
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


def moe_layers(model: Any) -> list[Any]:
    """The layers of experts, in order."""
    from vllm.model_executor.layers.fused_moe.layer import MoERunner

    return [m for m in model.modules() if isinstance(m, MoERunner)]


@torch.no_grad()
def check_head(model: Any, spec: EngineSpec, version: str) -> None:
    """Whether the head is computed in FP32, by what it gives for hidden states of the model's
    dtype."""
    weight, processor = model.lm_head.weight, model.logits_processor
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, weight.shape[1], generator=generator)
    hidden = hidden.to(weight.device, getattr(torch, spec.dtype))
    found = model.compute_logits(hidden)
    wanted = hidden.float() @ weight.float().T[:, : found.shape[1]] * processor.scale
    if processor.soft_cap is not None:
        wanted = torch.tanh(wanted / processor.soft_cap) * processor.soft_cap
    gap = float((found.float() - wanted).abs().max() / wanted.abs().max())
    if found.dtype != torch.float32 or not gap <= NEAR:
        raise InputError(
            f"vLLM {version} does not compute the head of {spec.model} in FP32 (its logits are "
            f"{gap:.1g} off): set precision.generator_head and precision.trainer_head to model, or "
            "placement.engine=local"
        )


class ExpertRoutes:
    """The experts of the tokens of each step, from vLLM's own capture of its routers."""

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
                f"precision.routing=replay: vLLM does not tell the experts of this model ({error}):"
                " set precision.routing=own, or placement.engine=local"
            ) from None
        self.layers = [m.layer_id for m in moe_layers(model)]

    def of(self, start: int, end: int) -> Experts:
        """Of some tokens of the last step."""
        found: Tensor = self.capturer.device_buffer[start:end, self.layers]
        return found.cpu().numpy().astype(np.int16)
