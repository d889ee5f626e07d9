"""One kind of error for everything a user can put right: a line that says what and what to do."""

from __future__ import annotations


class InputError(ValueError):
    """The input cannot be used as it is. The message is one line, ends with what to do, and is
    all that the command line prints (exit code 2)."""


class PipelineError(RuntimeError):
    """A part of the run failed or did not answer in time; one line says which and what to do."""
