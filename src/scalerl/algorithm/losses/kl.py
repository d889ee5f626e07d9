"""A KL penalty towards a frozen reference policy; off in every recipe of the paper.

With l = log pi_ref(y_t) - log pi_train(y_t), the usual one-sample estimators of KL(train || ref):

    k1 = -l          unbiased, may be negative
    k2 = l^2 / 2     biased, low variance, its gradient is that of the true KL
    k3 = e^l - 1 - l unbiased and never negative

To add an estimator, write a function of l and register it, or name it by its import path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scalerl.algorithm.batch import MAX_LOG_RATIO, TokenBatch
from scalerl.errors import InputError
from scalerl.recipe.losses import KL_NAMES
from scalerl.registry import Registry

#: log pi_ref - log pi_train -> estimate of the KL, token by token.
Estimator = Callable[[Tensor], Tensor]

KL_ESTIMATORS: Registry[Estimator] = Registry("KL estimator", announce=KL_NAMES.add)


@KL_ESTIMATORS.register("k1")
def k1(gap_N: Tensor) -> Tensor:
    return -gap_N


@KL_ESTIMATORS.register("k2")
def k2(gap_N: Tensor) -> Tensor:
    return 0.5 * gap_N * gap_N


@KL_ESTIMATORS.register("k3")
def k3(gap_N: Tensor) -> Tensor:
    # expm1 keeps the digits of small gaps: exp(gap) - 1 - gap in float32 is mostly rounding error
    # below |gap| = 3e-4, where the value is gap^2 / 2.
    return torch.expm1(gap_N) - gap_N


def kl_term(logprobs_N: Tensor, batch: TokenBatch, estimator: str | Estimator) -> Tensor:
    """The estimate of KL(train || reference) per token; 0 where a log-prob is not finite."""
    if batch.reference_logprobs_N is None:
        raise InputError("a KL term needs the reference policy's log-probs: set kl_coefficient = 0")
    reference_N = batch.reference_logprobs_N
    finite_N = torch.isfinite(logprobs_N.detach()) & torch.isfinite(reference_N)
    usable_N = batch.in_loss_N & finite_N
    zero = torch.zeros((), dtype=logprobs_N.dtype, device=logprobs_N.device)
    gap_N = torch.where(usable_N, reference_N, zero) - torch.where(usable_N, logprobs_N, zero)
    value_N = KL_ESTIMATORS.resolve(estimator)(gap_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return torch.where(usable_N, value_N, zero)
