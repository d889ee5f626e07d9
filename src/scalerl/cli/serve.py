"""scalerl serve: the live page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scalerl.errors import InputError
from scalerl.report.progress import ProgressBar

#: The port that is tried first.
PORT = 8642


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Serve a page that shows runs and their forecasts while they are training: runs of "
        "scalerl, logs of other frameworks, studies. It reads the given directories and writes "
        "nothing into them but pins, tags and notes, into .scalerl-page.json. The first line that "
        "is printed is its address. End it with Ctrl-C."
    )
    command.epilog = "Example: scalerl serve runs/ --open"
    command.add_argument(
        "directory", nargs="+", metavar="DIR", help="directory with runs, logs or studies; or a log"
    )
    command.add_argument(
        "--port",
        type=_port,
        default=None,
        metavar="P",
        help=f"port; 0: any that is free (default: {PORT}, or another if that is taken)",
    )
    command.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="H",
        help="address to listen on (default: 127.0.0.1, this machine alone); any other needs "
        "--token-file",
    )
    command.add_argument(
        "--token-file", metavar="F", help="file with a token that the page asks for"
    )
    command.add_argument(
        "--origin",
        metavar="URL",
        help="address of the page behind a proxy, for example https://runs.example.org: requests "
        "from there are answered as well; needs --token-file",
    )
    command.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of another page that may read the API (/api/v1) with the token, for example "
        "https://dashboards.example.org, or null for a page from a file; may be repeated; needs "
        "--token-file",
    )
    command.add_argument(
        "--export",
        metavar="OUT",
        help="write the page with its runs, studies and episodes into a directory that works from "
        "disk and from any static host, and end",
    )
    command.add_argument("--open", action="store_true", help="open the page in a browser")


def _port(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def _export(args: argparse.Namespace) -> None:
    """Write a copy of the page."""
    from scalerl.serve.page_copy import PageCopy

    given = [name for name in ("host", "port", "token_file", "origin", "cors", "open")
             if getattr(args, name) not in (None, False, [], "127.0.0.1")]  # fmt: skip
    if given:
        option = given[0].replace("_", "-")
        raise InputError(f"--{option} is for a server, which --export does not start: leave it out")
    copy = PageCopy(args.directory, Path(args.export))
    with ProgressBar("copying") as report:
        page, *_ = copy.write(report)
    print(page)
    print(f"{copy.size / 1e6:.1f} MB of data. {' '.join(copy.left_out)}", file=sys.stderr)


def run(args: argparse.Namespace) -> None:
    try:
        from scalerl.serve.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise InputError("the page needs more: pip install 'scalerl[serve]'") from None

    if args.export is not None:
        _export(args)
        return

    def begin(port: int) -> bool:
        return serve(
            args.directory, port, args.host, args.token_file, args.open, args.origin, args.cors
        )

    try:
        busy = begin(PORT if args.port is None else args.port)
    except InputError as error:
        # Only a port that is taken is worth a second try.
        if args.port is not None or f"port {PORT}:" not in str(error):
            raise
        busy = begin(0)
    if busy:
        # A thread that waits for a dead file system cannot be ended, and one that computes would
        # be cut off in the middle of native code, which ends in a crash now and then.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
