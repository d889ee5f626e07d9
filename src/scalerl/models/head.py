"""The LM head in FP32, whatever the model's dtype (paper, section 3.2).

Generator and trainer run different kernels; in BF16 their logits differ enough to distort the
importance ratio. So the head, on both sides, takes the model's hidden states and weight as they
are, converts both to FP32 (exactly: every BF16 number is an FP32 number) and multiplies there.

Precisions:

- `fp32`: as above.
- `model`: in the dtype of the weight; what the model itself would do.
- `bf16-emulated`: hidden states, weight, bias and result are rounded to BF16, the product is summed
  in FP32. That is what BF16 hardware does, at the speed of FP32, for studies on a CPU. Rounding is
  passed straight through in the backward pass.
- `fp16-emulated`: the same with FP16. Numbers beyond its largest, ±65,504, saturate there instead
  of becoming infinite, and those below 3e-8 become 0; gradients pass through both as through
  rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scalerl.errors import InputError

Precision = Literal["model", "fp32", "bf16-emulated", "fp16-emulated"]
#: The dtype that an emulated head rounds to.
EMULATED: dict[str, torch.dtype] = {
    "bf16-emulated": torch.bfloat16,
    "fp16-emulated": torch.float16,
}


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of products and sums: FP32, or FP64 for a model in FP64."""
    return torch.promote_types(dtype, torch.float32)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coarse: torch.dtype) -> Tensor:
        if coarse == torch.float16:
            most = torch.finfo(coarse).max
            x = x.clamp(-most, most)
        return x.to(coarse).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def rounded(x: Tensor, dtype: torch.dtype, precision: Precision) -> Tensor:
    """x rounded as an emulated precision rounds and stored in `dtype`, with a straight-through
    gradient."""
    return cast(Tensor, _StraightThrough.apply(x.to(dtype), EMULATED[precision]))  # type: ignore[no-untyped-call]


def project(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, precision: Precision, parts: int = 1
) -> Tensor:
    """hidden @ weight.T + bias in the given precision, also inside an autocast region. The result
    is FP32; with precision `model` it has the dtype of the weight.

    In `fp32` a BF16 weight is converted at each call, V·D·4 bytes: a cached FP32 copy would go
    stale when new weights arrive between two tokens. An emulated precision may sum over `parts` of
    the hidden dimension, and round after each.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        if precision == "model":
            return F.linear(hidden.to(weight.dtype), weight, bias)
        dtype = accumulation_dtype(weight.dtype)
        if precision == "fp32":
            return F.linear(
                hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
            )
        coarse_bias = None if bias is None else rounded(bias, dtype, precision)
        pieces = zip(
            rounded(hidden, dtype, precision).tensor_split(parts, dim=-1),
            rounded(weight, dtype, precision).tensor_split(parts, dim=-1),
            strict=True,
        )
        first_hidden, first_weight = next(pieces)
        product = rounded(F.linear(first_hidden, first_weight, coarse_bias), dtype, precision)
        for part, rows in pieces:
            term = rounded(F.linear(part, rows), dtype, precision)
            product = rounded(product + term, dtype, precision)
        return product


class HeadModule(Protocol):
    """A module with the head's parameters: an `nn.Linear`, or anything with these two."""

    @property
    def weight(self) -> Tensor: ...

    @property
    def bias(self) -> Tensor | None: ...


@dataclass(frozen=True, eq=False)
class Head:
    """A live view of a model's LM head: logits = softcap(scale · (hidden @ weight.T + bias)).

    It refers to the model's own module and copies nothing, so it always uses the current weights:
    after an optimiser step, a weight update or a re-tying.
    """

    module: HeadModule
    precision: Precision
    #: Constant factor of the logits (Granite, Cohere, Falcon-H1 and others).
    scale: float = 1.0
    #: Cap of cap · tanh(logits / cap) (Gemma); None for none.
    softcap: float | None = None

    def __post_init__(self) -> None:
        _check_precision(self.precision)

    @property
    def weight(self) -> Tensor:
        return self.module.weight

    @property
    def bias(self) -> Tensor | None:
        return self.module.bias

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of all positions in FP32, with scale and softcap. Materialises positions ×
        vocabulary: for sampling, not for training."""
        logits = project(hidden, self.weight, self.bias, self.precision)
        logits = logits.to(accumulation_dtype(logits.dtype))
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits


class HeadLinear(nn.Linear):
    """An `nn.Linear` that shares another's parameters and multiplies in a given precision, summed
    over `parts` of the hidden dimension (`project`)."""

    def __init__(self, source: nn.Linear, precision: Precision, parts: int = 1) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight = source.weight
        self.register_parameter("bias", source.bias)
        self.precision = precision
        self.parts = parts

    def forward(self, hidden: Tensor) -> Tensor:
        return project(hidden, self.weight, self.bias, self.precision, self.parts)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, precision={self.precision}"


def use_head_precision(model: nn.Module, precision: Precision, parts: int = 1) -> None:
    """Make the model itself, `model(...).logits` and `model.generate(...)`, use a precision for its
    head. Parameters, their names, tying and checkpoints stay as they are; `model` undoes it."""
    _check_precision(precision)
    head = _linear_head(model)
    if not 1 <= parts <= head.in_features:
        raise InputError(
            f"forces.generator_split = {parts}: a head of width {head.in_features} is summed over "
            f"1 to {head.in_features} parts"
        )
    lm: Any = model
    lm.set_output_embeddings(HeadLinear(head, precision, parts))


def head_of(model: nn.Module, precision: Precision, *, verify: bool = True) -> Head:
    """The head of a Hugging Face causal LM. Call it once and keep it: it follows the weights.

    Architectures differ in what they do around the head. With `verify`, four tokens are run through
    the model to check that `head` and `final_hidden` give its own logits: an unknown architecture
    is refused rather than trained on wrong log-probs.
    """
    head = Head(_linear_head(model), precision, _scale(model), _softcap(model))
    if verify:
        _verify(model, head)
    return head


def final_hidden(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The hidden states BTD that a causal LM passes to its head; `options` go to its body."""
    lm: Any = model
    body = getattr(lm, "base_model", lm)
    if body is lm:
        raise InputError(
            f"{type(model).__name__} has no body apart from its head: "
            "use a Hugging Face causal language model"
        )
    given = {"attention_mask": attention_mask, "position_ids": position_ids, "use_cache": False}
    asked = {name: value for name, value in given.items() if value is not None} | options
    hidden = getattr(body(input_ids=input_ids, **asked), "last_hidden_state", None)
    if not isinstance(hidden, Tensor):
        raise InputError(
            f"{type(body).__name__} gives no last_hidden_state: "
            "use a Hugging Face causal language model"
        )
    return hidden


def _check_precision(precision: str) -> None:
    if precision not in get_args(Precision):
        raise InputError(
            f"head precision {precision!r} is unknown: use one of {', '.join(get_args(Precision))}"
        )


def _linear_head(model: nn.Module) -> nn.Linear:
    find = getattr(model, "get_output_embeddings", None)
    module = find() if callable(find) else None
    if not isinstance(module, nn.Linear):
        raise InputError(
            f"{type(model).__name__} has no linear LM head (found {type(module).__name__}): "
            "use a Hugging Face causal language model"
        )
    return module


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _softcap(model: nn.Module) -> float | None:
    config = _text_config(model)
    for name in ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap"):
        cap = getattr(config, name, None)
        if cap:
            return float(cap)
    return None


def _scale(model: nn.Module) -> float:
    """The constant factor of the logits (or, equivalent without a bias, of the hidden states)."""
    lm, config = model, _text_config(model)
    multiplier = getattr(lm, "logit_scale", None)  # Cohere
    if multiplier is None:
        multiplier = getattr(getattr(lm, "model", None), "lm_head_multiplier", None)  # Falcon-H1
    if multiplier is not None:
        return float(multiplier)
    scaling = getattr(config, "logits_scaling", None)
    if scaling is None:
        return 1.0
    if str(getattr(config, "model_type", "")).startswith("hyperclovax"):
        return float(scaling)
    return 1.0 / float(scaling)  # Granite, MiniCPM3


@torch.no_grad()
def _verify(model: nn.Module, head: Head) -> None:
    weight = head.weight
    ids = (torch.arange(1, 5, device=weight.device) % weight.shape[0])[None]
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        lm: Any = model
        theirs = lm(input_ids=ids, use_cache=False).logits.to(accumulation_dtype(weight.dtype))
        ours = head.logits(final_hidden(model, ids))
    finally:
        for module, training in modes.items():
            module.training = training
    if not bool(theirs.isfinite().all()):
        raise InputError(
            f"the logits of {type(model).__name__} are not finite (NaN or inf): its weights are "
            "damaged, or too large for their dtype"
        )
    # A wrong head differs by the size of the logits, rounding by a few units in the last place of
    # the coarser of the two precisions: 16 units separate the two cases.
    coarsest = EMULATED.get(head.precision, weight.dtype)
    allowed = 16 * torch.finfo(coarsest).eps * max(1e-6, float(theirs.abs().max()))
    if theirs.shape != ours.shape or not float((theirs - ours).abs().max()) <= allowed:
        raise InputError(
            f"the logits of {type(model).__name__} are not those of its linear head: it needs a "
            "rule of its own in scalerl.models.head"
        )
