"""The probe: verifies that an engine has the weights that it was given. The log-probs of a few
tokens are computed by the engine and by the model's own forward pass over the same weights, on the
CPU and without copying them."""

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
from scalerl.models.routing import ExpertReplay, Experts, routers_of

#: Tokens in the probe.
PROBE_TOKENS = 16
#: Largest mean difference of a log-prob, by the model's dtype. Correct weights give about 1e-5 in
#: float32; a tied head left with its old weights gives about 1.
MAX_LOGPROB_GAP = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}
#: Share of itself by which every element is changed for the first verification.
PERTURBATION = 0.1


class Probe:
    """A model without weights, and the tokens that are scored with an engine's weights."""

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
        self.replay = ExpertReplay(self.model) if routers_of(self.model) else None
        self.tied = self.model.get_input_embeddings().weight is self.model.lm_head.weight
        words = int(self.model.get_input_embeddings().weight.shape[0])
        # Distinct tokens in no particular order: 31 shares no factor with usual vocabulary sizes.
        self.tokens = [(7 + 31 * i) % words for i in range(min(PROBE_TOKENS, spec.columns - 1))]
        self.allowed = MAX_LOGPROB_GAP[spec.dtype]
        self.shapes = {n: tuple(p.shape) for n, p in self.model.named_parameters()}

    def check_names(self, weights: Mapping[str, Tensor]) -> None:
        """Raise an InputError unless names and shapes are those of the model. vLLM would keep the
        old values of a missing tensor, with no more than a warning."""
        # Weights that are just arriving say their shapes beforehand, and are read once.
        found = getattr(weights, "shapes", None) or {n: tuple(t.shape) for n, t in weights.items()}
        if found != self.shapes:
            wrong = sorted(
                n for n in found.keys() | self.shapes.keys() if found.get(n) != self.shapes.get(n)
            )
            raise InputError(f"weights do not fit the model: {', '.join(wrong[:3])} ...")

    def perturbed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights with every element changed by a tenth of itself, up or down at random. A
        single tensor that the engine fails to load then shows; zeroing one tensor did not show a
        stale tied head."""
        generator = torch.Generator().manual_seed(0)
        out = {}
        for name, tensor in weights.items():
            sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            out[name] = (tensor.float() * (1 + PERTURBATION * sign)).to(tensor.dtype)
        return out

    @torch.no_grad()
    def gap(
        self,
        weights: Mapping[str, Tensor],
        scored: Sequence[float],
        experts: Experts | None = None,
    ) -> float:
        """Mean absolute difference between the engine's log-probs and ours; NaN where the engine's
        are. For a mixture, with the experts that the engine chose, where they are recorded: a token
        that rounding sends to other experts would look like wrong weights."""
        if self.replay is not None:
            self.replay.give([experts], len(self.tokens), torch.device("cpu"))
        given = {name: tensor.cpu() for name, tensor in weights.items()}
        ids = torch.tensor([self.tokens])
        # `tie_weights`: of two tied parameters only one is in the weights.
        logits = torch.func.functional_call(
            self.model, given, kwargs={"input_ids": ids, "use_cache": False}, tie_weights=True
        ).logits[0, :-1]
        ours = torch.log_softmax(logits.float(), -1).gather(1, ids[0, 1:, None])[:, 0]
        return float((ours - torch.tensor(scored)).abs().mean())


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Models built in this context have parameters on the meta device, but real buffers (rotary
    frequencies are computed at construction; torch's meta context would leave them empty)."""
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
