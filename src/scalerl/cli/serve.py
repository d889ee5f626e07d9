"""scalerl serve: the live page."""

from __future__ import annotations

import argparse
import os
import sys

from scalerl.errors import InputError

#: The port that is tried first.
PORT = 8642


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Serve a page that shows runs and their forecasts while they are training: runs of "
        "scalerl, logs of other frameworks, studies. It reads the given directories and writes "
        "nothing. The first line that is printed is its address. End it with Ctrl-C."
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
    command.add_argument("--open", action="store_true", help="open the page in a browser")


def _port(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> None:
    try:
        from scalerl.serve.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise InputError("the page needs more: pip install 'scalerl[serve]'") from None

    def begin(port: int) -> bool:
        return serve(args.directory, port, args.host, args.token_file, args.open, args.origin)

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
