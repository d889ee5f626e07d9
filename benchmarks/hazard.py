"""Do the signs of trouble come before falls, and how often without one?

python benchmarks/hazard.py DIR [DIR ...]     DIR holds run directories of `scalerl train`

Runs are watched as they grew. A fall is the first look at which the alarm is on. A hit: some sign
was on at one of the AHEAD looks before it; apart from that, whether it was on at the look itself,
with the fall. A false alarm: a sign is on at a look after which no fall comes within AHEAD looks.
For each sign alone and for any.
"""

from __future__ import annotations

import sys
from pathlib import Path

from record import save
from scalerl import InputError, Run, load_run
from scalerl.curves.alarm import FIRST_LOOK, alarm_history
from scalerl.curves.warning_signs import RULES, find_signs

#: Looks before a fall in which a sign is in time.
AHEAD = 4
ANY = "any"


def looks(run: Run) -> list[set[str]]:
    """Names of the signs that were on, at every evaluation."""
    return [
        {s.name for s in find_signs(run.window(None, end).signs)} if i + 1 >= FIRST_LOOK else set()
        for i, end in enumerate(run.compute)
    ]


def first_fall(run: Run) -> int | None:
    """Index of the evaluation at which the alarm was raised."""
    spans = alarm_history(run.compute, run.score, run.n_eval)
    if not spans:
        return None
    return int((run.compute < spans[0].raised).sum())


def main(folders: list[Path]) -> None:
    runs: list[Run] = []
    for folder in folders:
        for path in sorted(p for p in folder.iterdir() if (p / "evals.jsonl").exists()):
            try:
                run = load_run(str(path))
            except InputError as error:
                print(f"{path.name}: {error}")
                continue
            if len(run) >= FIRST_LOOK + 2 and run.signs:
                runs.append(run)
    names = [*(rule.name for rule in RULES), ANY]
    falls = 0
    hits = dict.fromkeys(names, 0)
    along = dict.fromkeys(names, 0)
    calm = 0
    false = dict.fromkeys(names, 0)
    for run in runs:
        seen, fall = looks(run), first_fall(run)
        end = len(seen) if fall is None else fall
        if fall is not None:
            falls += 1
            before = set().union(*seen[max(fall - AHEAD, 0) : fall])
            for name in before | ({ANY} if before else set()):
                hits[name] += 1
            for name in seen[fall] | ({ANY} if seen[fall] else set()):
                along[name] += 1
        for i in range(FIRST_LOOK, end):
            if fall is None or fall - i > AHEAD:
                calm += 1
                for name in seen[i] | ({ANY} if seen[i] else set()):
                    false[name] += 1
    rows = [
        {"sign": name, "hits": hits[name], "with_the_fall": along[name], "falls": falls,
         "false": false[name], "calm_looks": calm}
        for name in names
    ]  # fmt: skip
    print(f"{len(runs)} runs, {falls} with a fall, {calm} looks without one ahead")
    for row in rows:
        before, along = f"{row['hits']}/{falls}", f"{row['with_the_fall']}/{falls}"
        print(f"  {row['sign']:24s} before {before}   with {along}   without {row['false']}/{calm}")
    save("hazard", {"runs": len(runs), "ahead": AHEAD, "signs": rows})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main([Path(folder) for folder in sys.argv[1:]])
