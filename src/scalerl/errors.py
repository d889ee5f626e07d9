"""One kind of error for everything a user can put right: a line that says what and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """The input cannot be used as it is. The message is one line, ends with what to do, and is
    all that the command line prints (exit code 2)."""


#: What allocators (torch's, CUDA's) and the system say when memory or address space has run out.
NO_MEMORY = (
    "out of memory",
    "t allocate memory",
    "not enough memory",
    "can't start new thread",
)


class PipelineError(RuntimeError):
    """A part of the run failed or did not answer in time; one line says which and what to do."""


def memory_is_short(error: BaseException) -> bool:
    """Whether an error means that memory has run out. (Torch and Python's threads have no type of
    error for it.)

    >>> memory_is_short(OSError(12, "Cannot allocate memory")), memory_is_short(OSError("no file"))
    (True, False)
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in NO_MEMORY)
