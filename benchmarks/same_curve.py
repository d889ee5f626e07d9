"""Has the default run's curve stayed what it was, while the lab became faster? Ten seeds of before
and ten of now.

    python benchmarks/learning.py --seeds 10 --result learning_now
    python benchmarks/same_curve.py

They are compared as two recipes, by the rules of `scalerl compare --group-by recipe`, in FLOPs: no
clock is in it.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from record import RESULTS, save
from scalerl import Recipe, Run, compare


def runs_of(found: dict[str, Any], name: str) -> list[Run]:
    validation = Recipe.load("scalerl", "tiny").validation
    out = []
    for each in found["runs"]["default"]:
        compute, score = map(np.array, each["curve"])
        size = np.full(len(score), float(validation.prompts * validation.k))
        out.append(Run(f"{name}-s{each['seed']}", compute, score, "flops", n_eval=size, group=name))
    return out


def main() -> None:
    before, now = (json.loads((RESULTS / f"{name}.json").read_text())
                   for name in ("learning", "learning_now"))  # fmt: skip
    runs = runs_of(before, "before") + runs_of(now, "now")
    pair = compare(runs, group_by="recipe").pairs[0]
    print(pair)
    save("same_curve", {
        "before": before["commit"], "now": now["commit"],
        "seeds": {name: sum(r.group == name for r in runs) for name in ("before", "now")},
        "pair": pair.to_dict(),
    })  # fmt: skip


if __name__ == "__main__":
    main()
