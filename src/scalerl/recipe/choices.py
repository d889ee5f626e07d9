"""Choices that bring constants of their own: losses, length controls, curricula."""

from __future__ import annotations

from typing import Any

PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"

#: In the tables below: a constant that has to be given, and one that may stay unset.
REQUIRED, OPTIONAL = object(), object()

#: Constants each built-in loss has, with their defaults. A loss given by import path may use any.
LOSS_CONSTANTS: dict[str, dict[str, Any]] = {
    "cispo": {"ratio_cap": 5.0},
    "reinforce": {"ratio_cap": OPTIONAL},
    "grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "dapo": {"clip_low": 0.2, "clip_high": 0.26},
    "dr-grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "gspo": {"clip_low": 3e-3, "clip_high": 5e-3},
}
#: Constants of each way to control length.
LENGTH_CONSTANTS: dict[str, dict[str, Any]] = {
    "interruption": {
        "phrase": PHRASE,
        "think_tokens_min": 10240,
        "think_tokens_max": 12288,
        "answer_tokens": 2048,
    },
    "penalty": {"penalty_max": REQUIRED, "penalty_cache": REQUIRED},
    "none": {},
}
CURRICULUM_CONSTANTS: dict[str, dict[str, Any]] = {
    "no-positive-resampling": {"threshold": 0.9, "history": "latest"},
    "uniform": {},
}


def with_constants(data: Any, path: str, table: dict[str, dict[str, Any]], default: str) -> Any:
    """`data` with the constants of the choice filled in; refuses those of the other choices."""
    if not isinstance(data, dict):
        return data
    section, switch = path.split(".")
    data = {key: value for key, value in data.items() if value is not None}
    choice = data.get(switch, default)
    if not isinstance(choice, str) or choice not in table:
        return data
    others = {k for constants in table.values() for k in constants} - set(table[choice])
    for key in sorted(others):
        if key in data:
            users = " and ".join(name for name, constants in table.items() if key in constants)
            raise ValueError(f"{section}.{key} is not used by {choice}, only by {users}")
    constants = {**table[choice], **data}
    missing = [f"{section}.{key}" for key, value in constants.items() if value is REQUIRED]
    if missing:
        raise ValueError(f'{path} = "{choice}" needs {" and ".join(missing)}')
    return {key: value for key, value in constants.items() if value is not OPTIONAL}
