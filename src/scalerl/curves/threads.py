"""One BLAS thread for many small matrices: a second one costs time, and far more of it when other
processes keep the cores busy (measured: 5 ms a fit became 120 ms)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def one_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Run the function with one BLAS thread, whatever the process is set to."""

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
