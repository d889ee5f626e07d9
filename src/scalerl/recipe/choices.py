"""Choices that bring constants of their own: length controls and curricula. (Losses: losses.py.)"""

from __future__ import annotations

from typing import Any

#: The paper's phrase (main text). Its appendix leaves out the last "now".
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"

#: In the tables below: a constant that has to be given.
REQUIRED = object()

#: Constants of each way to control length.
LENGTH_CONSTANTS: dict[str, dict[str, Any]] = {
    "interruption": {
        "phrase": PHRASE,
        "think_tokens_min": 10240,
        "think_tokens_max": 12288,
        "answer_tokens": 2048,
    },
    "penalty": {"max_tokens": REQUIRED, "penalty_max": REQUIRED, "penalty_cache": REQUIRED},
    "none": {"max_tokens": REQUIRED},
}
CURRICULUM_CONSTANTS: dict[str, dict[str, Any]] = {
    "no-positive-resampling": {"threshold": 0.9, "history": "latest"},
    "uniform": {},
}
#: Why some constants are of no use to a choice, where it is not plain: (path, choice) → reason.
REASONS = {
    ("length.max_tokens", "interruption"): "a rollout is limited there by "
    "length.think_tokens_max and length.answer_tokens",
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
            why = REASONS.get((f"{section}.{key}", choice))
            raise ValueError(
                f"{section}.{key} is not used by {choice}, only by {users}"
                + (f": {why}" if why else "")
            )
    constants = {**table[choice], **data}
    missing = [f"{section}.{key}" for key, value in constants.items() if value is REQUIRED]
    if missing:
        raise ValueError(f'{path} = "{choice}" needs {" and ".join(missing)}')
    return constants
