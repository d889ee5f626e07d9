"""A KL penalty towards a frozen reference policy; off in every recipe of the paper.

With l = log pi_ref(y_t) - log pi_train(y_t), the usual one-sample estimators of KL(train || ref):

    k1 = -l          unbiased, may be negative
    k2 = l^2 / 2     biased, low variance, its gradient is that of the true KL
    k3 = e^l - 1 - l unbiased and never negative
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.algorithm.batch import MAX_LOG_RATIO, LossBatch
from scalerl.errors import InputError

KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda gap: -gap,
    "k2": lambda gap: 0.5 * gap * gap,
    # expm1 keeps the digits of small gaps: exp(gap) - 1 - gap in float32 is mostly rounding error
    # below |gap| = 3e-4, where the value is gap^2 / 2.
    "k3": lambda gap: torch.expm1(gap) - gap,
}


def kl_term(logprobs_BT: Tensor, batch: LossBatch, estimator: str) -> Tensor:
    """The estimate of KL(train || reference) per token; 0 where a log-prob is not finite."""
    if batch.reference_logprobs_BT is None:
        raise InputError("a KL term needs the reference policy's log-probs: set kl_coefficient = 0")
    if estimator not in KL_ESTIMATORS:
        raise InputError(f"no KL estimator {estimator!r}: choose from {', '.join(KL_ESTIMATORS)}")
    reference_BT = batch.reference_logprobs_BT
    finite_BT = torch.isfinite(logprobs_BT.detach()) & torch.isfinite(reference_BT)
    usable_BT = batch.mask_BT & finite_BT
    zero = torch.zeros((), dtype=logprobs_BT.dtype, device=logprobs_BT.device)
    gap_BT = torch.where(usable_BT, reference_BT, zero) - torch.where(usable_BT, logprobs_BT, zero)
    value_BT = KL_ESTIMATORS[estimator](gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return torch.where(usable_BT, value_BT, zero)
