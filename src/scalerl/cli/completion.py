"""scalerl completion: a script that lets a shell complete commands, options, presets and keys.

The script holds all words, so that a completion starts no Python. It is made from the parsers
themselves. (shtab does as much for argparse, but knows no KEY=VALUE; argcomplete starts Python for
every completion.)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

SHELLS = ("bash", "zsh", "fish")
HOW = """\
Print a script that completes commands, options, presets and keys of recipes.
To use it, put one of these lines into the file that your shell reads at start:

  bash   eval "$(scalerl completion bash)"    ~/.bashrc
  zsh    eval "$(scalerl completion zsh)"     ~/.zshrc
  fish   scalerl completion fish | source     ~/.config/fish/config.fish"""


@dataclass(slots=True)
class CommandWords:
    """What may follow a command: `name` is "fit", or "recipe show" of a command in a command."""

    name: str
    about: str
    #: Option → what it is for.
    options: dict[str, str] = field(default_factory=dict)
    #: Options that take a value → the values that are known.
    values: dict[str, list[str]] = field(default_factory=dict)
    #: Commands in this one, choices of arguments.
    words: list[str] = field(default_factory=list)
    #: Whether arguments may be presets, and keys of recipes.
    presets: bool = False
    keys: bool = False


def add(command: argparse.ArgumentParser) -> None:
    command.description = HOW
    command.epilog = 'Example: eval "$(scalerl completion bash)"'
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("shell", choices=SHELLS, help="your shell")


def run(args: argparse.Namespace) -> None:
    from scalerl.cli import parser
    from scalerl.recipe.load import presets

    found = list(described(parser()))
    print(SCRIPTS[args.shell](found, list(presets()), key_values()), end="")


def described(parser: argparse.ArgumentParser, name: str = "", about: str = "") -> Iterator[Any]:
    """A parser and the parsers in it."""
    here = CommandWords(name, about)
    inner: list[tuple[str, argparse.ArgumentParser, str]] = []
    for action in parser._actions:
        # argparse has no public way to list the commands in a parser.
        if isinstance(action, argparse._SubParsersAction):
            helps = {a.dest: a.help or "" for a in action._choices_actions}
            here.words += list(action.choices)
            inner += [(n, made, helps.get(n, "")) for n, made in action.choices.items()]
        elif action.option_strings:
            about_option = (action.help or "").replace("%%", "%")
            here.options |= dict.fromkeys(action.option_strings, about_option)
            if action.nargs != 0:
                values = [str(choice) for choice in action.choices or ()]
                if str(action.metavar).startswith("KEY="):
                    values = [f"{key}=" for key in key_values()]
                here.values |= dict.fromkeys(action.option_strings, values)
        else:
            here.words += [str(choice) for choice in action.choices or ()]
            # What an argument takes is said nowhere else.
            said = f"{action.metavar} {action.help}".lower()
            here.presets |= "preset" in said or "recipe|" in said
            here.keys |= "key=value" in said
    yield here
    for word, made, summary in inner:
        yield from described(made, f"{name} {word}".strip(), summary)


def key_values() -> dict[str, list[str]]:
    """Dotted key of a recipe → its values, where there are few.

    >>> key_values()["schedule.name"]
    ['pipeline', 'off-policy', 'lag']
    """
    from scalerl.recipe.fields import names_of
    from scalerl.recipe.problems import known_keys
    from scalerl.recipe.schema import IDENTITY

    found: dict[str, list[str]] = {}
    for key, info in known_keys().items():
        if key in IDENTITY:
            continue
        kind = info.annotation
        choices = [str(v) for v in get_args(kind)] if get_origin(kind) is Literal else []
        found[key] = choices or names_of(info)
        if kind is bool:
            found[key] = ["true", "false"]
    return found


# -- bash, and zsh by its emulation of bash's completion ------------------------------------------

#: Names of variables are such as zsh has no other use for.
BASH = """\
_scalerl() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev= before= cmd= key= flags= known= files= taken= i
  [ "$COMP_CWORD" -gt 0 ] && prev=${{COMP_WORDS[COMP_CWORD-1]}}
  [ "$COMP_CWORD" -gt 1 ] && before=${{COMP_WORDS[COMP_CWORD-2]}}
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$cmd ${{COMP_WORDS[i]}}" in
      {commands}) cmd="${{cmd:+$cmd }}${{COMP_WORDS[i]}}" ;;
    esac
  done
  # bash splits words at "=", zsh does not
  if [ "$cur" = "=" ]; then key=$prev; cur=
  elif [ "$prev" = "=" ]; then key=$before
  elif [ "${{cur#*.*=}}" != "$cur" ]; then key=${{cur%%=*}}; fi
  if [ -n "$key" ]; then
    case "$key" in
{keys}
    esac
    if [ "${{cur#*=}}" != "$cur" ]; then
      COMPREPLY=($(compgen -P "$key=" -W "$known" -- "${{cur#*=}}"))
    else
      COMPREPLY=($(compgen -W "$known" -- "$cur"))
    fi
    return 0
  fi
  # the value of an option, or else an argument or an option of the command
  case "$cmd $prev" in
{values}
    *) case "$cmd" in
{flags}
    esac ;;
  esac
  case "$taken$cur" in
    -*) known=$flags files= ;;
  esac
  COMPREPLY=($(compgen -W "$known" -- "$cur"))
  [ -n "$files" ] && while IFS= read -r i; do
    [ -n "$i" ] && COMPREPLY+=("$i") && compopt -o filenames 2>/dev/null
  done <<< "$(compgen -f -- "$cur")"
  case "${{COMPREPLY[*]}}" in
    *=) compopt -o nospace 2>/dev/null ;;
  esac
  return 0
}}
complete -F _scalerl scalerl
"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def bash(found: list[CommandWords], presets: list[str], keys: dict[str, list[str]]) -> str:
    names = [each.name.rpartition(" ")[::2] for each in found if each.name]
    values, flags = [], []
    for each in found:
        for option, known in each.values.items():
            # A value that may be anything is completed as a file.
            takes = f"known={_quoted(' '.join(known))}" if known else "files=1"
            values.append(f"    {_quoted(f'{each.name} {option}')}) taken=1 {takes} ;;")
        flags.append(
            f"      {_quoted(each.name)}) flags={_quoted(' '.join(each.options))} "
            f"known={_quoted(' '.join(_words(each, presets, keys)))} "
            f"files={'' if each.words else '1'} ;;"
        )
    return BASH.format(
        commands="|".join(_quoted(f"{outer} {last}") for outer, last in names),
        keys="\n".join(f"      {k}) known={_quoted(' '.join(v))} ;;" for k, v in keys.items() if v),
        values="\n".join(values),
        flags="\n".join(flags),
    )


def zsh(found: list[CommandWords], presets: list[str], keys: dict[str, list[str]]) -> str:
    return ZSH + bash(found, presets, keys)


def _words(each: CommandWords, presets: list[str], keys: dict[str, list[str]]) -> list[str]:
    """Arguments of a command, as far as they are known."""
    return [
        *each.words,
        *(presets if each.presets else ()),
        *([f"{key}=" for key in keys] if each.keys else ()),
    ]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish -----------------------------------------------------------------------------------------


def fish(found: list[CommandWords], presets: list[str], keys: dict[str, list[str]]) -> str:
    lines = ["# Completion of scalerl for fish."]
    for each in found:
        words = _words(each, presets, keys)
        if each.keys:  # fish completes whole words: `schedule.name=pipeline` is one
            words += [f"{key}={value}" for key, known in keys.items() for value in known]
        if words:
            no_files = " -f" if each.words else ""
            lines.append(
                f"complete -c scalerl -n {_condition(each, found)}{no_files} "
                f"-a {_quoted(' '.join(words))}"
            )
        for option, about in each.options.items():
            dashes = "-l" if option.startswith("--") else "-s"
            known = each.values.get(option)
            takes = "" if known is None else " -r"
            takes += f" -a {_quoted(' '.join(known))}" if known else ""
            lines.append(
                f"complete -c scalerl -n {_condition(each, found)} {dashes} {option.lstrip('-')} "
                f"-d {_quoted(about)}{takes}"
            )
    return "\n".join(lines) + "\n"


def _condition(each: CommandWords, found: list[CommandWords]) -> str:
    """When fish offers these: after the words of the command, and before those of one in it."""
    seen = [f"__fish_seen_subcommand_from {word}" for word in each.name.split()]
    names = [other.name.rpartition(" ")[::2] for other in found if other.name]
    inner = [last for outer, last in names if outer == each.name]
    if inner:
        seen.append(f"not __fish_seen_subcommand_from {' '.join(inner)}")
    return _quoted("; and ".join(seen) or "true")


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
