"""scalerl episodes: the recorded episodes of a run, filtered, in the terminal or as JSON Lines."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.runs.episode_filter import EpisodeFilter
    from scalerl.runs.episode_log import EpisodeLog

#: Episodes that are shown where `--limit` names no number.
LIMIT = 10
#: Orders, with the episodes that each shows first.
SORTS = ("newest", "oldest", "reward", "-reward", "length", "-length")


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Print recorded episodes of a run, each segment after its source: sampled training "
        "episodes and the answers of validations. Conditions of --where: source, task, prompt, "
        "finish, correct (true, false, none), truncated, tool_failed, step, reward and length, "
        "the last three also with < <= > >=."
    )
    command.epilog = (
        "Example: scalerl episodes runs/first --where 'correct=false step>100' --limit 3"
    )
    command.add_argument(
        "run", metavar="RUN", help="directory of a run, or rollouts of another framework"
    )
    command.add_argument("id", nargs="*", metavar="ID", help="show these episodes: training:42")
    pick = command.add_argument_group("which episodes")
    pick.add_argument(
        "--where",
        metavar="CONDITIONS",
        default="",
        help="conditions with spaces between, all of which must hold",
    )
    pick.add_argument(
        "--text", metavar="TEXT", help="with this text in question, episode or check, in any case"
    )
    pick.add_argument(
        "--regex",
        metavar="PATTERN",
        help="with text that this pattern matches (Rust's syntax: no lookaround)",
    )
    pick.add_argument("--prompt", metavar="PROMPT", help="answers to this prompt, oldest first")
    pick.add_argument(
        "--group", metavar="ID", help="episodes of the same prompt and step as this one"
    )
    pick.add_argument(
        "--sort", choices=SORTS, help="order; with a minus the largest first (default: newest)"
    )
    pick.add_argument(
        "--limit", type=_limit, default=LIMIT, metavar="N", help=f"at most N (default: {LIMIT})"
    )
    command.add_argument("--full", action="store_true", help="show long segments whole")
    command.add_argument(
        "--json",
        action="store_true",
        help="print JSON Lines: one episode a line, with all its tokens",
    )


def _limit(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:12]) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 to 1000000")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from scalerl.runs.episode_sources import open_episodes

    log = open_episodes(args.run)
    log.refresh(None)
    for problem in log.problems:
        print(f"scalerl: {problem}", file=sys.stderr)
    matched = [_number(log, key) for key in args.id] or _chosen(log, args)
    shown = matched[: args.limit] if not args.id else matched
    _print(log, shown, args)
    if not args.json:
        from scalerl.report.terminal import say

        of = f"{len(matched):,} of {len(log.entries):,} episodes match"
        say(of if len(shown) == len(matched) else f"{of}: {len(shown)} shown (--limit)")
    return 0 if shown else 1


def _number(log: EpisodeLog, key: str) -> int:
    number = log.number_of(key)
    if number is None:
        raise InputError(f"no episode {key!r}: there are {len(log.entries)}, such as training:0")
    return number


def _chosen(log: EpisodeLog, args: argparse.Namespace) -> list[int]:
    """Numbers of the episodes that the options ask for, in order."""
    from scalerl.runs.episode_filter import order_of

    found = log.select(_filter(log, args), None)
    order = order_of(args.sort or ("newest" if args.prompt is None else "oldest"))
    numbers: list[int] = log.ordered(found.numbers, order).tolist()
    return numbers


def _filter(log: EpisodeLog, args: argparse.Namespace) -> EpisodeFilter:
    from scalerl.runs.episode_filter import EpisodeFilter

    wanted = EpisodeFilter.from_text(args.where)
    given = {name: value for name in ("text", "regex", "prompt") if (value := getattr(args, name))}
    wanted = replace(wanted, **given)
    if args.group is not None:
        from scalerl.runs.episode_view import summary

        one = summary(log, _number(log, args.group))
        wanted = replace(
            wanted, prompt=one["prompt"], source=one["source"], step_from=one["step"],
            step_to=one["step"],
        )  # fmt: skip
    return wanted


def _print(log: EpisodeLog, numbers: list[int], args: argparse.Namespace) -> None:
    from scalerl.files import to_json
    from scalerl.report.episode_text import episode_text
    from scalerl.report.terminal import say
    from scalerl.runs.episode_view import detail

    for number in numbers:
        found = detail(log, number)
        if args.json:
            print(to_json(found))
        else:
            say(episode_text(found, full=args.full) + "\n")
