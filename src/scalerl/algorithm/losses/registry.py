"""Where losses are found by name; `@LOSSES.register("mine")` adds one from outside."""

from __future__ import annotations

from collections.abc import Callable

from scalerl.algorithm.batch import TokenLoss
from scalerl.algorithm.registry import Registry

#: (logprobs_BT, batch, **constants) -> TokenLoss
Loss = Callable[..., TokenLoss]

LOSSES: Registry[Loss] = Registry("loss")
