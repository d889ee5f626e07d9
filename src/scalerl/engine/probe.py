"""Whether an engine has the weights that it was given: log-probs of a few tokens, once by the
engine and once by the model's own forward pass over those very weights, on the CPU and without a
copy of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from scalerl.engine.interface import EngineSpec
from scalerl.errors import InputError
from scalerl.models.head import use_head_precision
from scalerl.models.load import check_before
from scalerl.models.routing import Experts, Replay, routers_of

#: Tokens of the probe.
LENGTH = 16
#: Largest mean difference of a log-prob, by the dtype of the model.
ALLOWED = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
#: How much of itself each tensor is changed by, for the first proof.
CHANGE = 0.1


class Probe:
    """A model without weights, and tokens to score."""

    def __init__(self, spec: EngineSpec) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        trust = spec.trust_remote_code
        check_before(spec.model, trust)
        config = AutoConfig.from_pretrained(spec.model, trust_remote_code=trust)
        with _parameters_on_meta():
            self.model: Any = AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, spec.dtype), trust_remote_code=trust
            )
        self.model.tie_weights()
        self.model.eval()
        use_head_precision(self.model, spec.head)
        self.replay = Replay(self.model) if routers_of(self.model) else None
        self.tied = self.model.get_input_embeddings().weight is self.model.lm_head.weight
        words = int(self.model.get_input_embeddings().weight.shape[0])
        self.tokens = [(7 + 31 * i) % words for i in range(min(LENGTH, spec.columns - 1))]
        self.allowed = ALLOWED[spec.dtype]
        self.shapes = {n: tuple(p.shape) for n, p in self.model.named_parameters()}

    def check_names(self, weights: Mapping[str, Tensor]) -> None:
        """A tensor that is missing would stay as it was."""
        found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if found != self.shapes:
            wrong = sorted(
                n for n in found.keys() | self.shapes.keys() if found.get(n) != self.shapes.get(n)
            )
            raise InputError(f"weights do not fit the model: {', '.join(wrong[:3])} ...")

    def perturbed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every tensor by a tenth of itself, up or down, element by element."""
        generator = torch.Generator().manual_seed(0)
        out = {}
        for name, tensor in weights.items():
            sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            out[name] = (tensor.float() * (1 + CHANGE * sign)).to(tensor.dtype)
        return out

    @torch.no_grad()
    def gap(
        self,
        weights: Mapping[str, Tensor],
        scored: Sequence[float],
        experts: Experts | None = None,
    ) -> float:
        """Mean |theirs - ours|; not a number where theirs are none. Of a mixture, with the experts
        that the engine took, where it tells them: a token that rounding sends elsewhere would look
        like other weights."""
        if self.replay is not None:
            self.replay.give([experts], len(self.tokens), torch.device("cpu"))
        given = {name: tensor.cpu() for name, tensor in weights.items()}
        ids = torch.tensor([self.tokens])
        logits = torch.func.functional_call(
            self.model, given, kwargs={"input_ids": ids, "use_cache": False}, tie_weights=True
        ).logits[0, :-1]
        ours = torch.log_softmax(logits.float(), -1).gather(1, ids[0, 1:, None])[:, 0]
        return float((ours - torch.tensor(scored)).abs().mean())


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Models that are made in here have parameters on the meta device, and real buffers."""
    module: Any = nn.Module
    register = module.register_parameter

    def empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=False)
        register(self, name, param)

    module.register_parameter = empty
    try:
        yield
    finally:
        module.register_parameter = register
