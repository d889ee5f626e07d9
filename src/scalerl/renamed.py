"""Old names of public objects: they work for one release and warn with the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed_attributes(
    new_by_old: Mapping[str, str], until: str = "0.3"
) -> Callable[[Any, str], Any]:
    """A `__getattr__` for a class that finds attributes under the names they had in version 0.1;
    the warning says that these work until version `until`."""

    def __getattr__(self: Any, name: str) -> Any:
        new, kind = new_by_old.get(name), type(self).__name__
        if new is None:
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        warnings.warn(
            f"{kind}.{name} is now {kind}.{new}; the old name works until version {until}",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(self, new)

    return __getattr__


def renamed_names(module: str, new_by_old: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module that finds objects under the names they had in version 0.1.

    >>> find = renamed_names("math", {"squareroot": "sqrt"})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     find("squareroot")(9.0), str(caught[0].message)
    (3.0, 'math.squareroot is now math.sqrt; the old name works until version 0.3')
    """

    def __getattr__(name: str) -> Any:
        new = new_by_old.get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is now {module}.{new}; the old name works until version 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(sys.modules[module], new)

    return __getattr__
