"""The page's modules as one script, for places where browsers refuse modules: pages from disk."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: An import of names from a module beside it.
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"\./([\w.]+)";[^\n]*\n', re.MULTILINE)
#: An import of a whole module when it is needed.
LATER = re.compile(r'\bimport\("\./([\w.]+)"\)')
#: A name that a module exports where it declares it.
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) +(\w+))", re.MULTILINE)


def joined(files: Mapping[str, bytes], entry: str) -> str:
    """The module `entry` with all that it imports, each in a function of its own.

    >>> print(joined({"b.js": b"export const two = 2;\\n",
    ...               "a.js": b'import { two as n } from "./b.js";\\nalert(n);\\n'}, "a.js"))
    "use strict";
    const modules = {};
    modules["b.js"] = (() => {
    const two = 2;
    return { two };
    })();
    modules["a.js"] = (() => {
    const { two: n } = modules["b.js"];
    alert(n);
    return {  };
    })();
    <BLANKLINE>
    """
    exports: dict[str, list[str]] = {}
    parts: list[str] = []
    _add(files, entry, exports, parts, ())
    # What is imported later has to be there before the entry runs, which may ask for it at once.
    last, later = parts.pop(), sorted(set(LATER.findall("".join(parts) + files[entry].decode())))
    for name in later:
        _add(files, name, exports, parts, ())
    script = "".join(['"use strict";\nconst modules = {};\n', *parts, last])
    return LATER.sub(r'Promise.resolve(modules["\1"])', script)


def _add(
    files: Mapping[str, bytes], name: str, exports: dict[str, list[str]], parts: list[str],
    above: tuple[str, ...],
) -> None:  # fmt: skip
    """Add a module behind those that it imports."""
    if name in exports:
        return
    if name in above:
        raise ValueError(f"modules import one another: {' -> '.join([*above, name])}")
    text = files[name].decode()
    for match in IMPORT.finditer(text):
        _add(files, match[2], exports, parts, (*above, name))
        missing = set(_names(match[1])) - set(exports[match[2]])
        if missing:
            raise ValueError(f"{name} imports {sorted(missing)} of {match[2]}, which has them not")
    exports[name] = EXPORT.findall(text)
    text = EXPORT.sub("", IMPORT.sub(_as_constants, text))
    # `import(` is a call, which is replaced once all modules are joined.
    left = re.search(r"^(?:import\b(?!\()|export\b)[^\n(]*", text, re.MULTILINE)
    if left:
        raise ValueError(f"{name}: {left[0]!r} is written in a way that is not read here")
    parts.append(
        f'modules["{name}"] = (() => {{\n{text}return {{ {", ".join(exports[name])} }};\n}})();\n'
    )


def _names(names: str | None) -> list[str]:
    return [each.split(" as ")[0].strip() for each in (names or "").split(",") if each.strip()]


def _as_constants(match: re.Match[str]) -> str:
    if not match[1]:
        return ""
    names = re.sub(r"\s+as\s+", ": ", match[1].strip())
    return f'const {{ {names} }} = modules["{match[2]}"];\n'
