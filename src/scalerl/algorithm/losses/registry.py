"""The registry of losses; `@LOSSES.register("mine")` adds one.

A loss is a function `(logprobs_N, batch, **constants) -> TokenLoss`. Its further parameters are
its constants: the values in a recipe are checked against the signature before a run starts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from scalerl.algorithm.batch import TokenLoss
from scalerl.errors import InputError
from scalerl.recipe.losses import LOSS_NAMES
from scalerl.registry import Registry

#: (logprobs_N, batch, **constants) -> TokenLoss
Loss = Callable[..., TokenLoss]

LOSSES: Registry[Loss] = Registry("loss", announce=LOSS_NAMES.add)


def check_constants(name: str, loss: Loss, constants: Mapping[str, Any]) -> None:
    """Raise an InputError unless the loss takes exactly these constants.

    >>> def soft(logprobs_N, batch, *, floor, width=0.3): ...
    >>> check_constants("soft", soft, {"floor": 0.1, "widht": 0.2})
    Traceback (most recent call last):
    scalerl.errors.InputError: loss.widht is no constant of soft, which takes floor, width:
    did you mean loss.width?
    >>> check_constants("soft", soft, {"width": 0.2})
    Traceback (most recent call last):
    scalerl.errors.InputError: loss soft needs loss.floor: give it a value
    """
    try:
        parameters = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature: nothing to compare with
        return
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(by_place) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise InputError(f"loss {name} takes no (logprobs, batch): write it with these two first")
    own = {
        p.name: p
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p not in by_place[:2]
    }
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for key in constants:
        if key not in own and not anything:
            near = get_close_matches(key, own, n=1)
            hint = f"did you mean loss.{near[0]}?" if near else "leave it out"
            takes = ", ".join(own) or "none"
            raise InputError(f"loss.{key} is no constant of {name}, which takes {takes}: {hint}")
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in constants:
            raise InputError(f"loss {name} needs loss.{key}: give it a value")
