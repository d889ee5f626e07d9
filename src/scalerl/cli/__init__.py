"""The command line: `scalerl <command>`, one small file per command.

Only the module of the chosen command is imported, and it imports what is heavy when it runs, so
that `--help` is instant.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from scalerl import __version__
from scalerl.errors import InputError
from scalerl.streams import redirect_unread_streams

#: Command → its help in one line, in the order of `scalerl --help`.
COMMANDS = {
    "fit": "fit the scaling law to runs",
    "forecast": "predict the score at more compute",
    "compare": "say which run or recipe is better, and in what",
    "backtest": "check how good forecasts of known runs would have been",
    "report": "write an HTML page and figures",
    "serve": "watch runs and their forecasts in a browser",
    "episodes": "read the recorded episodes of a run",
    "init": "write a commented recipe to start from",
    "recipe": "show, check and compare recipes",
    "plan": "what a run would cost and reach, before it is paid for",
    "train": "train a model by a recipe, with a live forecast",
    "scale": "change the number of generators of a running run",
    "study": "run many recipes and compare them",
    "eval": "score a model, a checkpoint, or every checkpoint of a run",
    "host": "serve a model over HTTP, as a judge for runs",
    "export": "write a checkpoint as a Hugging Face model",
    "upload": "upload a checkpoint to the Hugging Face hub",
    "doctor": "find out what is wrong with a run, and what to do",
    "warmstart": "make the tiny model that the default run starts from",
    "completion": "complete commands in bash, zsh or fish",
}
#: Modules of commands that cannot have the command's name: `eval` is a built-in function.
MODULES = {"eval": "evaluate"}
#: Command → its positional argument that also takes words after the options.
TAKES_MORE = {
    "plan": "recipe",
    "train": "recipe",
    "eval": "model",
    "study": "words",
    "init": "changes",
}
EXIT_OK = 0
#: The answer is no: a run that failed, a gate that did not pass.
EXIT_NO = 1
EXIT_BAD_INPUT = 2


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The command line. With `only`, other commands are known by name and help alone, and their
    modules are not imported; completion and the reference page need all of them."""
    top = argparse.ArgumentParser(
        prog="scalerl",
        description="Fit, extrapolate and compare learning curves of RL runs, and train by recipes "
        "with a live forecast.",
        epilog="Try: scalerl fit example:paper-8b --from 1500 --to 50000",
        formatter_class=_one_line_each,
    )
    top.add_argument("--version", action="version", version=f"scalerl {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        if only is None or name == only:
            module = importlib.import_module(f"scalerl.cli.{MODULES.get(name, name)}")
            module.add(command)
            # `recipe` has no `run`: each of its actions sets a handler of its own.
            command.set_defaults(handler=getattr(module, "run", None))
    return top


def _one_line_each(prog: str) -> argparse.HelpFormatter:
    """A formatter that keeps the help of every command on the line of its name."""
    formatter = argparse.HelpFormatter(prog)
    # argparse forgets the indent of commands when it measures them (Python 3.11), and would move
    # the helps of the longest names to lines of their own.
    formatter._action_max_length = max(map(len, COMMANDS)) + 4
    return formatter


def _chosen(argv: Sequence[str]) -> str:
    """The command among the words; "" where there is none. Options before it take no value."""
    return next((word for word in argv if not word.startswith("-")), "")


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments as argparse reads them. KEY=VALUE may also follow the options of `train`,
    `eval` and `init`, and any word those of `study`, which argparse alone does not allow."""
    words = sys.argv[1:] if argv is None else argv
    chosen = _chosen(words)
    top = parser(chosen)
    if chosen and chosen not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(chosen, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "scalerl --help lists the commands"
        top.error(f"no command {chosen!r}: {hint}")
    # argparse fills a positional of several words once: later words come back in `rest`.
    args, rest = top.parse_known_args(words)
    takes = TAKES_MORE.get(args.command)
    changes = args.command == "study" or all("=" in r for r in rest)
    if rest and takes is not None and changes and all(r[0] != "-" for r in rest):
        getattr(args, takes).extend(rest)
    elif rest:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 done, 1 the answer is no, 2 bad input."""
    # Many small matrices: a second BLAS thread only costs time. Must be set before numpy loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    args = _parsed(argv)
    code: int = EXIT_OK
    redirect_unread_streams()
    try:
        # Commands that cannot say no return nothing.
        code = args.handler(args) or EXIT_OK
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except InputError as error:
        # stderr may have lost its reader as well: the message must not raise.
        redirect_unread_streams()
        print(f"scalerl: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader (head, less) has seen enough
        return code
    except KeyboardInterrupt:
        print("scalerl: interrupted", file=sys.stderr)
        # 128 + SIGINT, as shells report it.
        return 130
    finally:
        redirect_unread_streams()  # or Python would complain when it closes its streams
