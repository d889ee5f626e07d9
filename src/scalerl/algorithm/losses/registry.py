"""The registry of losses; `@LOSSES.register("mine")` adds one.

A loss is a function `(logprobs_N, batch, **constants) -> TokenLoss`. Its further parameters are
its constants: the values in a recipe are checked against the signature before a run starts
(`algorithm/constants.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from scalerl.algorithm.batch import TokenLoss
from scalerl.recipe.losses import LOSS_NAMES
from scalerl.registry import Registry

#: (logprobs_N, batch, **constants) -> TokenLoss
Loss = Callable[..., TokenLoss]

LOSSES: Registry[Loss] = Registry("loss", announce=LOSS_NAMES.add)
