"""Checks of functions that a recipe names, before a run starts: how they are called, with which
constants, and whether other processes can be given them."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from scalerl.errors import InputError


def check_constants(
    section: str,
    name: str,
    function: Callable[..., Any],
    constants: Mapping[str, Any],
    first: tuple[str, ...] = (),
) -> None:
    """Raise an InputError unless the function takes exactly the constants of a recipe's section,
    after its `first` arguments.

    >>> def soft(logprobs_N, batch, *, floor, width=0.3): ...
    >>> given = {"floor": 0.1, "widht": 0.2}
    >>> check_constants("loss", "soft", soft, given, ("logprobs", "batch"))
    Traceback (most recent call last):
    scalerl.errors.InputError: loss.widht is no constant of soft, which takes floor, width:
    did you mean loss.width?
    >>> check_constants("loss", "soft", soft, {"width": 0.2}, ("logprobs", "batch"))
    Traceback (most recent call last):
    scalerl.errors.InputError: loss soft needs loss.floor: give it a value
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature: nothing to compare with
        return
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(by_place) < len(first) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        taken = ", ".join(first)
        raise InputError(f"{section} {name} must take ({taken}) before its constants: add them")
    own = {
        p.name: p
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p not in by_place[: len(first)]
    }
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for key in constants:
        if key not in own and not anything:
            near = get_close_matches(key, own, n=1)
            hint = f"did you mean {section}.{near[0]}?" if near else "leave it out"
            takes = ", ".join(own) or "none"
            raise InputError(
                f"{section}.{key} is no constant of {name}, which takes {takes}: {hint}"
            )
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in constants:
            raise InputError(f"{section} {name} needs {section}.{key}: give it a value")


def check_call(what: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise an InputError unless the function can be called with these arguments.

    >>> check_call("filter mine", lambda: None, "candidates")
    Traceback (most recent call last):
    scalerl.errors.InputError: filter mine cannot be called with (candidates):
    too many positional arguments
    """
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:  # a callable without a signature
        return
    except TypeError as error:
        raise InputError(
            f"{what} cannot be called with ({', '.join(arguments)}): {error}"
        ) from None


def check_travels(what: str, thing: Any) -> None:
    """Raise an InputError unless the object can be pickled: it is sent to other processes by the
    names of its module and its own."""
    try:
        pickle.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{what} cannot be sent to another process ({error}): define it at the top level of a "
            "module, as a function or class with a name"
        ) from None
