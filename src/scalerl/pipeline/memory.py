"""What to reduce when a process of a run has no memory left."""

from __future__ import annotations

#: By the first word of a part's name.
LESS = {
    "trainer": "set placement.activations=recompute, shorten answers (length), or take a smaller "
    "model",
    "generator": "lower placement.generators, batch.prompts or batch.generations, shorten answers "
    "(length), or take a smaller model",
    "checker": "lower placement.checkers, or let the task's verifier use less",
    "main": "lower placement.checkers, batch.prompts or batch.generations",
}


def less_memory(name: str) -> str:
    """What makes a part with this name need less memory.

    >>> less_memory("checker 3")
    "lower placement.checkers, or let the task's verifier use less"
    """
    return LESS[name.partition(" ")[0]]
