"""scalerl upload: a checkpoint of a run to the Hugging Face hub, with its card."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from scalerl.cli import options
from scalerl.cli.export import add_checkpoint
from scalerl.errors import InputError


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Upload what `scalerl export` writes to a model repository, which is created if it does "
        "not exist. It is private unless --public is given. The token is that of `hf auth login` "
        "or HF_TOKEN; HF_ENDPOINT names another hub."
    )
    command.epilog = "Example: scalerl upload runs/first me/first"
    add_checkpoint(command)
    command.add_argument("repo", metavar="OWNER/NAME", help="model repository")
    command.add_argument("--public", action="store_true", help="make the repository public")


def run(args: argparse.Namespace) -> None:
    from scalerl.cli.export import export

    with options.required_for("uploading", "hub"):
        import huggingface_hub as hub
    if args.repo.count("/") != 1 or not all(args.repo.split("/")):
        raise InputError(f"{args.repo}: name the repository as OWNER/NAME")
    token = hub.get_token()
    if token is None:
        raise InputError("no token for the hub: run `hf auth login`, or set HF_TOKEN")
    if not sys.stderr.isatty():
        hub.utils.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="scalerl-upload-") as folder:
        step = export(Path(args.run), args.step, Path(folder) / "model")
        try:
            url = _upload(hub.HfApi(token=token), args, Path(folder) / "model", step)
        except InputError:
            raise
        except Exception as error:  # of the hub's client or of what it sends by: many kinds
            # The text may quote the request, and with it the token.
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(
                f"{args.repo} was not uploaded: {why.replace(token, '***')}; check the token's "
                "rights, the name and the network"
            ) from None
    print(f"uploaded step {step} to {url}")


def _upload(api: Any, args: argparse.Namespace, folder: Path, step: int) -> str:
    made = api.create_repo(args.repo, private=not args.public, exist_ok=True)
    # A repository that existed keeps its visibility: do not publish by accident.
    if not args.public and not api.repo_info(args.repo).private:
        raise InputError(f"{args.repo} is public: give --public, or another name")
    api.upload_folder(
        repo_id=args.repo,
        folder_path=str(folder),
        commit_message=f"Step {step}, by scalerl",
    )
    return str(made)
