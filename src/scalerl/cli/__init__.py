"""The command line: `scalerl <command>`. One small file per command; nothing heavy is imported
before a command runs, so that --help is instant."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from scalerl import __version__

#: Command → its positional argument that also takes words after the options.
TAKES_MORE = {"train": "recipe", "eval": "model", "study": "words", "init": "changes"}
EXIT_OK, EXIT_NO, EXIT_BAD_INPUT = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from scalerl.cli import (
        backtest,
        compare,
        completion,
        doctor,
        evaluate,
        export,
        fit,
        forecast,
        init,
        recipe,
        report,
        scale,
        serve,
        study,
        train,
        upload,
        warmstart,
    )

    top = argparse.ArgumentParser(
        prog="scalerl",
        description="Every RL run comes with a forecast: fit, extrapolate and compare RL curves.",
        epilog="Try: scalerl fit example:paper-8b --from 1500 --to 50000",
    )
    top.add_argument("--version", action="version", version=f"scalerl {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (
        *(fit, forecast, compare, backtest, report, serve),
        *(init, recipe, train, scale, study, evaluate, export, upload, doctor),
        *(warmstart, completion),
    ):
        module.add(commands)
    return top


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """As argparse does, and KEY=VALUE may also follow the options of `train`, `eval` and `init`,
    any word those of `study`."""
    top = parser()
    args, rest = top.parse_known_args(argv)
    takes = TAKES_MORE.get(args.command)
    changes = args.command == "study" or all("=" in r for r in rest)
    if rest and takes is not None and changes and all(r[0] != "-" for r in rest):
        getattr(args, takes).extend(rest)
    elif rest:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 done, 1 the answer is no, 2 bad input."""
    # Many small matrices: a second BLAS thread only costs time. Must be said before numpy loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    args = _parsed(argv)
    from scalerl.errors import InputError
    from scalerl.streams import let_go

    code: int = EXIT_OK
    let_go()
    try:
        code = args.handler(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except InputError as error:
        let_go()
        print(f"scalerl: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:  # the reader (head, less) has seen enough
        return code
    except KeyboardInterrupt:
        print("scalerl: interrupted", file=sys.stderr)
        return 130
    finally:
        let_go()  # or Python would complain when it closes its streams
