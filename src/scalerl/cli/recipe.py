"""scalerl recipe: presets, resolved recipes, what differs, and configs of other frameworks."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from scalerl.cli import options

if TYPE_CHECKING:
    from scalerl.recipe import Difference, Recipe

WIDTH = 80
SOURCES = (
    "a preset (see `scalerl recipe list`) or a TOML file, later ones laid over earlier; "
    "or a field to change, as in loss.ratio_cap=4"
)


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Show, check and compare recipes: ScaleRL, the recipes it was compared with, and yours."
    )
    command.epilog = "Example: scalerl recipe diff scalerl minimax-m1"
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add(actions, "list", run_list, "name the presets")
    example = "scalerl tiny loss.ratio_cap=4"
    show = _add(actions, "show", run_show, "print a resolved recipe as TOML", example)
    show.add_argument("source", nargs="+", metavar="NAME|KEY=VALUE", help=SOURCES)
    show.add_argument(
        "--provenance",
        action="store_true",
        help="say after each number where it comes from; the first NAME has to be a preset",
    )
    about = "what differs between two recipes, and what it means"
    diff = _add(actions, "diff", run_diff, about, "scalerl minimax-m1")
    diff.add_argument("a", metavar="A", help="a preset or a TOML file")
    diff.add_argument("b", metavar="B", help="a preset or a TOML file")
    check = _add(actions, "check", run_check, "is this file a possible recipe?", "my.toml")
    check.add_argument("source", nargs="+", metavar="FILE|KEY=VALUE", help=SOURCES)
    about = "a recipe from a TRL, prime-rl or verl config"
    importing = _add(actions, "import", run_import, about, "grpo.yaml > my.toml")
    importing.add_argument(
        "file",
        metavar="FILE",
        help="GRPOConfig YAML or JSON, prime-rl TOML, verl YAML or launch script",
    )
    importing.add_argument(
        "--from",
        dest="framework",
        choices=["trl", "prime-rl", "verl"],
        help="default: by the file's ending and keys",
    )
    importing.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="training processes TRL was launched with, which its config does not say (default 1)",
    )
    importing.add_argument(
        "--strict", action="store_true", help="exit 1 if anything that matters was not mapped"
    )


def _add(actions: Any, name: str, handler: Any, about: str, example: str = "") -> Any:
    """An action; `example` are the words after its name."""
    action = actions.add_parser(name, help=about)
    action.description = about[0].upper() + about[1:] + ("" if about.endswith("?") else ".")
    action.epilog = f"Example: scalerl recipe {name} {example}".rstrip()
    options.add_json(action)
    action.set_defaults(handler=handler)
    return action


def run_list(args: argparse.Namespace) -> None:
    from scalerl.recipe import presets

    found = presets()
    if args.json:
        options.print_json([{"name": name, "summary": text} for name, text in found.items()])
        return
    width = max(map(len, found))
    for name, summary in found.items():
        indent = " " * (width + 2)
        print(textwrap.fill(f"{name:<{width}}  {summary}", WIDTH, subsequent_indent=indent))


def run_show(args: argparse.Namespace) -> None:
    recipe = _load(args.source)
    if args.json:
        options.print_json(recipe.to_dict())
    elif args.provenance:
        from scalerl.recipe.load import annotated

        print(annotated(recipe, args.source[0]), end="")
    else:
        print(recipe.to_toml(), end="")


def run_check(args: argparse.Namespace) -> None:
    recipe = _load(args.source)
    if args.json:
        options.print_json({"name": recipe.name, "valid": True})
    else:
        loss, schedule = recipe.loss, recipe.schedule
        print(
            f"{recipe.name} is a possible recipe: {loss.name}, {loss.aggregation} average, "
            f"{schedule.name}-{schedule.k}, {recipe.batch.completions} completions a step"
        )


def run_diff(args: argparse.Namespace) -> None:
    from scalerl.recipe import Recipe, diff

    a, b = Recipe.load(args.a), Recipe.load(args.b)
    found = diff(a, b)
    # By the words that were asked for: a copy of a preset still has the preset's name.
    if args.json:
        rows = [difference.to_dict() for difference in found]
        options.print_json({"a": args.a, "b": args.b, "differences": rows})
    elif found:
        print(diff_table(args.a, args.b, found))
    else:
        print(f"{args.a} and {args.b} do the same.")


def run_import(args: argparse.Namespace) -> int:
    from scalerl.recipe.importers import import_config

    found = import_config(args.file, framework=args.framework, processes=args.processes)
    if args.json:
        options.print_json(found.to_dict())
    else:
        print(found.recipe.to_toml(), end="")
        # On stderr, so that stdout can be written to a file as it is.
        for line in found.lines():
            print(textwrap.fill(line, WIDTH, subsequent_indent="  "), file=sys.stderr)
    return 1 if args.strict and found.unmapped else 0


def _load(words: list[str]) -> Recipe:
    """The recipe that presets, files and key=value words name together."""
    from scalerl.recipe import Recipe

    # A path may hold "=" as well: keys are lower case and have no slashes.
    changes = [word for word in words if re.match(r"[a-z_.]+=", word)]
    return Recipe.load(*(word for word in words if word not in changes), overrides=changes)


def diff_table(a: str, b: str, found: list[Difference]) -> str:
    """Path and both values on a line, the meaning below it. Values that are too long keep their
    beginning; names of recipes that are too long keep their end, where files differ."""
    path_width = max(len(difference.path) for difference in found)
    # Two spaces are between each two of the three columns.
    space = (WIDTH - path_width - 4) // 2
    a, b = (name if len(name) <= space else "..." + name[3 - space :] for name in (a, b))
    rows = [(d.path, _cell(d.a, space), _cell(d.b, space)) for d in found]
    value_width = max(len(a), *(len(row[1]) for row in rows))
    head = f"{'':<{path_width}}  {a:<{value_width}}  {b}"
    lines = [head]
    for difference, (path, left, right) in zip(found, rows, strict=True):
        lines.append(f"{path:<{path_width}}  {left:<{value_width}}  {right}")
        lines.append(textwrap.indent(textwrap.fill(difference.meaning, WIDTH - 4), "    "))
    return "\n".join(lines)


def _cell(value: Any, width: int) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."
