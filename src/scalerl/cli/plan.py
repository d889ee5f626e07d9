"""scalerl plan: what a run would cost, and what it would reach, before it is paid for."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from scalerl.cli import options
from scalerl.cli.recipe import SOURCES
from scalerl.errors import InputError


def add(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Simulate placements of a run on some devices: step time, waits, staleness, memory and "
        "cost; with a curve, the pass rate that a budget reaches."
    )
    command.epilog = (
        "Example: scalerl plan scalerl --accelerator h100-sxm --devices 16 --days 7 "
        "--mean-length 6000 --mfu 0.1-0.4 --decode public"
    )
    command.add_argument("recipe", nargs="*", metavar="NAME|KEY=VALUE", help=SOURCES)
    where = command.add_argument_group("devices")
    where.add_argument("--accelerator", metavar="NAME", help="kind of device; --list names them")
    where.add_argument(
        "--devices", type=int, metavar="N",
        help="devices to place the run on (default: the recipe's own placement, as it is)",
    )  # fmt: skip
    where.add_argument(
        "--accelerators", type=Path, metavar="FILE", help="TOML with accelerators of your own"
    )
    where.add_argument("--list", action="store_true", help="print the table of accelerators")
    where.add_argument(
        "--tensor-parallel", type=options.numbers, metavar="N,N", dest="degrees",
        help="devices of a generator to try",
    )  # fmt: skip
    where.add_argument(
        "--k", type=options.numbers, metavar="K,K", help="values of schedule.k to try besides"
    )
    _add_rates(command.add_argument_group("what decides: no defaults"))
    _add_workload(command.add_argument_group("the workload"))
    _add_budget(command.add_argument_group("budget and score"))
    command.add_argument(
        "--recipe", type=Path, dest="recipe_out", metavar="FILE",
        help="write the recipe with the proposed placement",
    )  # fmt: skip
    command.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the plan (PNG, SVG or PDF)"
    )
    command.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="write the plan as a page: report.html"
    )
    command.add_argument(
        "--quick", action="store_true", help="shorter simulations: seconds, with more noise"
    )
    options.add_json(command)


def _add_rates(group: Any) -> None:
    group.add_argument(
        "--mean-length", metavar="TOKENS", help="mean length of answers, or LOW-HIGH (90 %%)"
    )
    group.add_argument(
        "--mfu", metavar="SHARE",
        help="share of peak products that the trainer uses, LOW-HIGH (90 %%), or `public`",
    )  # fmt: skip
    group.add_argument(
        "--decode", metavar="SHARE",
        help="share of peak bandwidth that generators use, LOW-HIGH (90 %%), or `public`",
    )  # fmt: skip
    group.add_argument(
        "--like", type=Path, metavar="RUN",
        help="rates and lengths of a recorded run, on the hardware it ran on",
    )  # fmt: skip
    group.add_argument(
        "--measure", action="store_true", help="run the recipe here for some steps, and use those"
    )


def _add_workload(group: Any) -> None:
    number = options.number
    group.add_argument(
        "--spread", type=number, metavar="CV", help="spread of lengths: sd / mean (default 0.6)"
    )
    group.add_argument(
        "--alike", type=number, metavar="SHARE",
        help="share of that variance between prompts (default 0.7)",
    )  # fmt: skip
    group.add_argument(
        "--growth", type=number, metavar="SHARE", help="growth of lengths a step (default 0)"
    )
    group.add_argument(
        "--prompt-tokens", type=int, metavar="N", help="tokens of a prompt (default 256)"
    )
    group.add_argument(
        "--kept", type=number, metavar="SHARE",
        help="share of groups neither all right nor all wrong (default 0.7)",
    )  # fmt: skip
    group.add_argument(
        "--check-seconds", type=number, metavar="S", help="seconds to check an answer (default 0)"
    )
    group.add_argument("--turns", type=int, metavar="N", help="turns of an episode (default 1)")
    group.add_argument(
        "--reply-seconds", type=number, metavar="S", help="with --turns: seconds of a reply"
    )
    group.add_argument(
        "--reply-tokens", type=int, metavar="N", help="with --turns: tokens of a reply"
    )


def _add_budget(group: Any) -> None:
    number = options.number
    group.add_argument("--days", type=number, metavar="D", help="days on the clock")
    group.add_argument("--budget", type=number, metavar="M", help="money, with --price")
    group.add_argument("--price", type=number, metavar="P", help="price of a device-hour")
    group.add_argument(
        "--curve", metavar="RUN|A,B,C_mid,R_0",
        help="learning curve: a run, or its parameters with C_mid in steps",
    )  # fmt: skip
    group.add_argument(
        "--per-step", type=number, metavar="X",
        help="compute of one step in the curve's unit, where that is not steps",
    )  # fmt: skip
    group.add_argument(
        "--target", type=options.numbers, metavar="R,R", default=[], help="pass rates to reach"
    )
    group.add_argument(
        "--study", type=Path, metavar="DIR",
        help="with --target: which arm of a study is first there on these devices",
    )  # fmt: skip
    group.add_argument(
        "--pilot", action="store_true",
        help="with --curve: how long until the ceiling can be read",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    from scalerl.planner.accelerators import accelerators

    if args.list:
        _print_table(accelerators(), as_json=args.json)
        return
    if not args.recipe:
        raise InputError("name a recipe: scalerl plan scalerl --accelerator h100-sxm --devices 16")
    found = _planned(args)
    if args.recipe_out is not None:
        from scalerl.files import write_atomic

        write_atomic(args.recipe_out, found.placed_recipe().to_toml())
    if args.plot is not None:
        found.plot(str(args.plot))
    if args.out is not None:
        from scalerl.planner.timeline import timeline_of
        from scalerl.report.plan_page import write_plan_report

        command = shlex.join(["scalerl", *sys.argv[1:]])
        write_plan_report(found, timeline_of(found), args.out, command)
    if args.json:
        options.print_json(found.to_dict())
        return
    from scalerl.report import terminal

    print(found)
    if args.recipe_out is not None:
        changes = " ".join(f"{k}={v}" for k, v in found.changes.items())
        print("\n" + terminal.wrap(f"wrote {args.recipe_out}: {changes}"))


def _planned(args: argparse.Namespace) -> Any:
    from scalerl.planner.plan import plan
    from scalerl.planner.world import EnvironmentModel

    given: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("devices", "mean_length", "mfu", "decode", "spread", "alike", "growth",
                     "prompt_tokens", "kept", "check_seconds", "days", "budget", "price", "curve",
                     "per_step", "target", "accelerators", "like", "measure", "study")
        if getattr(args, name) is not None
    }  # fmt: skip
    if args.turns is not None:
        if args.turns < 1:
            raise InputError(f"--turns {args.turns}: give 1 or more")
        given["environment"] = EnvironmentModel(
            args.turns, args.reply_seconds or 0.0, tokens=args.reply_tokens or 0
        )
    elif args.reply_seconds is not None or args.reply_tokens is not None:
        raise InputError("--reply-seconds and --reply-tokens describe turns: give --turns as well")
    for name, values in (("degrees", args.degrees), ("staleness", args.k)):
        if values is not None:
            given[name] = _positive(values, "--k" if name == "staleness" else "--tensor-parallel")
    if args.quick:
        given |= {"steps": 16, "ratios": 3}
    if args.pilot and args.curve is None:
        raise InputError("--pilot needs a curve to believe beforehand: give --curve")
    return plan(args.recipe, accelerator=args.accelerator, pilot=args.pilot, **given)


def _positive(values: list[float], option: str) -> list[int]:
    for value in values:
        if value != int(value) or value < 1:
            raise InputError(f"{option} {value:g}: give whole numbers, 1 or more")
    return [int(value) for value in values]


def _print_table(found: dict[str, Any], *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        options.print_json([asdict(each) for each in found.values()])
        return
    print("name       bf16 TFLOP/s  fp32    GB   GB/s  link GB/s  confidence")
    for each in found.values():
        print(
            f"{each.name:<10} {each.bf16:12,.0f} {each.fp32:5,.0f} {each.gb:5,.0f} "
            f"{each.gb_s:6,.0f} {each.link_gb_s:10,.0f}  {each.confidence}"
        )
