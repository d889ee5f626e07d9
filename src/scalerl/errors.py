"""Errors that a user can act on: one line that says what happened and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """The input cannot be used as it is. The message is one line, ends with what to do, and is
    all that the command line prints (exit code 2)."""


class PipelineError(RuntimeError):
    """A worker of the run failed or missed a deadline. The message is one line that names the
    worker and says what to do."""


#: Texts of out-of-memory errors by torch, CUDA, the operating system and Python's threads. Most of
#: them raise a plain RuntimeError or OSError, so that only the text tells.
OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    # "can't allocate memory" (torch) and "cannot allocate memory" (the C library)
    "t allocate memory",
    "not enough memory",
    # a thread's stack could not be mapped
    "can't start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory has run out.

    >>> is_out_of_memory(OSError(12, "Cannot allocate memory"))
    True
    >>> is_out_of_memory(OSError("no file"))
    False
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in OUT_OF_MEMORY_TEXTS)
