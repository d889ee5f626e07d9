"""scalerl host: serve a model at an OpenAI-compatible address."""

from __future__ import annotations

import argparse
import os
import threading
from typing import TYPE_CHECKING

from scalerl.cli import options
from scalerl.errors import InputError
from scalerl.processes import stop_signals

if TYPE_CHECKING:
    from scalerl.hosting.server import Model

#: Environment variable with the key that clients must send.
KEY = "SCALERL_HOST_KEY"
#: Addresses that only this machine reaches.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Serve a model at an OpenAI-compatible address (/v1/chat/completions), by the local engine "
        "or vLLM: a judge for the task `judge`, for any number of runs. Its replies report the "
        f"seconds of its devices, for the ledgers of the runs. With {KEY} in the environment, "
        "clients must send it as their API key."
    )
    command.epilog = "Example: scalerl host my-judge --port 8100"
    command.add_argument("model", metavar="MODEL", help="directory or Hugging Face id of a model")
    command.add_argument("--port", type=int, default=8100, help="TCP port (%(default)s); 0: any")
    command.add_argument(
        "--host", default=LOOPBACK[0], metavar="ADDRESS", help="address to listen on (%(default)s)"
    )
    command.add_argument("--engine", default="local", help="local or vllm (%(default)s)")
    command.add_argument("--name", default="judge", help="model name in requests (%(default)s)")
    command.add_argument("--dtype", default="float32", help="of the weights (%(default)s)")
    command.add_argument("--device", default="auto", help="auto, cpu or cuda (%(default)s)")
    command.add_argument(
        "--devices", type=int, default=1, help="tensor parallel in vLLM (%(default)s)"
    )
    command.add_argument(
        "--reward",
        action="store_true",
        help="a reward model: a classifier with one output, for task.options.conversation = true",
    )
    command.add_argument(
        "--columns", type=int, default=4096, help="longest chat with its reply (%(default)s tokens)"
    )
    command.add_argument(
        "--slots", type=int, default=64, help="replies written at once (%(default)s)"
    )


def _model(args: argparse.Namespace) -> Model:
    from scalerl.hosting.chat_model import load_chat_model
    from scalerl.hosting.reward_model import RewardModel

    if args.reward:
        return RewardModel(
            args.name, args.model, dtype=args.dtype, device=args.device, columns=args.columns
        )
    return load_chat_model(
        args.model, engine=args.engine, dtype=args.dtype, device=args.device, name=args.name,
        columns=args.columns, slots=args.slots, devices=args.devices,
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    key = os.environ.get(KEY, "")
    if args.host not in LOOPBACK and not key:
        raise InputError(
            f"--host {args.host} is open to other machines: set a key in {KEY}, or leave --host out"
        )
    if args.devices > 1 and args.engine == "local":
        raise InputError(f"--devices {args.devices} needs --engine vllm: the local engine has one")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with options.required_for("host"):
        from scalerl.hosting.server import ModelServer
    model = _model(args)
    try:
        server = ModelServer(model, args.host, args.port, key)
    except OSError as error:
        raise InputError(f"port {args.port} of {args.host}: {error.strerror}") from None
    host, port = server.server_address[:2]
    print(f"{args.model} as {args.name} at http://{host!s}:{port}/v1", flush=True)

    def stop() -> None:
        # In a thread: it waits until the loop below has ended.
        threading.Thread(target=server.shutdown, daemon=True).start()

    with stop_signals(stop):
        server.serve_forever()
    model.close()
    server.server_close()
    return 0
