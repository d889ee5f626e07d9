"""The names frameworks log under: which column is the score, which is the compute.

One table for scores, in order of preference: the first line that matches a column with numbers
in it wins, and validation comes before training. One table for compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scalerl.runs.record import ComputeKind

Stage = Literal["validation", "training"]


@dataclass(frozen=True)
class ScoreName:
    """A pattern for the name of a score; `@k` means any number of samples per prompt."""

    framework: str
    stage: Stage
    pattern: re.Pattern[str]


def _scores(stage: Stage, *lines: tuple[str, str]) -> tuple[ScoreName, ...]:
    # verl's file logger nests its metrics under "data".
    return tuple(
        ScoreName(framework, stage, re.compile(f"(?:data/)?(?:{pattern})", re.IGNORECASE))
        for framework, pattern in lines
    )


_HELD_OUT = r"(?:val|valid|validation|eval|evaluation|test|heldout|held_out)"
_RIGHT = (
    r"(?:acc|accuracy|pass_?rate|pass(?:@|_at_?)1|solve_?rate|success_?rate|win_?rate"
    r"|(?:mean|avg)@\d+|correct|solved|exact_match|em)"
)

SCORES: tuple[ScoreName, ...] = (
    *_scores(
        "validation",
        ("scalerl", r"(?:eval/)?pass_rate"),
        ("prime-rl", r"eval/[^/]+/(?:effective/)?avg@\d+"),
        ("prime-rl", r"eval/[^/]+/all/avg@\d+"),
        ("verl", r"val-core/.+/mean@\d+"),
        ("verl", r"val/test_score/.+"),
        ("SkyRL", r"eval/all/avg_score"),
        ("SkyRL", r"eval/.+/avg_score"),
        ("NeMo-RL", r"validation/accuracy"),
        ("open-instruct", r"eval/objective/verifiable_correct_rate"),
        ("open-instruct", r"eval/scores"),
        ("tinker-cookbook", r"test/env/all/correct"),
        ("tinker-cookbook", r"test/env/.+/correct"),
        ("tinker-cookbook", r"test/env/all/reward/total"),
        ("OpenRLHF", r"eval/(?:eval_)?pass1"),
        ("OpenRLHF", r"eval/(?:eval_)?.+_pass1"),
        ("any", rf"{_HELD_OUT}[/_.\- ](?:.+[/_.\- ])?{_RIGHT}"),
        ("any", rf"{_HELD_OUT}[/_.\- ](?:.+[/_.\- ])?score(?:s|/mean)?"),
        ("TRL", r"eval[_/]reward"),
        ("TRL", r"eval[_/]rewards/.+/mean"),
        ("AReaL", r"eval-rollout/(?:task_)?reward"),
        ("any", rf"{_HELD_OUT}[/_.\- ](?:.+[/_.\- ])?reward(?:/mean|_mean)?"),
        ("any", rf"(?!train|env/|objective/|rollout|critic)(?:.+[/_.\- ])?{_RIGHT}"),
        ("any", r"score|y|value"),
    ),
    *_scores(
        "training",
        ("open-instruct", r"objective/verifiable_correct_rate"),
        ("tinker-cookbook", r"env/all/correct"),
        ("tinker-cookbook", r"env/all/reward/total"),
        ("verl", r"critic/score/mean"),
        ("verl", r"critic/rewards/mean"),
        ("prime-rl", r"reward/(?:all/|effective/)?mean"),
        ("SkyRL", r"reward/avg_raw_reward"),
        ("slime", r"rollout/raw_reward"),
        ("AReaL", r"rollout/(?:task_)?reward"),
        ("NeMo-RL, OpenRLHF, TRL", r"train/reward"),
        ("TRL", r"reward"),
        ("TRL", r"(?:train/)?rewards/.+/mean"),
        ("any", rf"(?:train|training)[/_.\- ](?:.+[/_.\- ])?(?:{_RIGHT}|score|rewards?)(?:/mean)?"),
        ("any", r"(?:mean|avg|average)_reward|reward_mean|(?:objective/)?scores"),
    ),
)

#: How to read a compute column: as it is, as seconds, or as moments in time.
Unit = Literal["", "seconds", "moments"]

# In order of preference. A column of GPU-hours or FLOPs is there because somebody wants it;
# steps are on every row of every log; tokens, samples and the clock only where nothing else is.
_COMPUTE: tuple[tuple[str, ComputeKind, Unit], ...] = (
    (r"(?:gpu|device|accelerator|tpu|chip)[_\- ]?h(?:ou)?rs?|gpu[_\-]h", "gpu_hours", ""),
    (r"(?:total|train|training|model|cumulative)?[_ ]?flop?s", "flops", ""),
    (
        r"_?(?:global|train|training|trainer|optimi[sz]er|rollout|policy)?[_ ]?steps?"
        r"|iter|iteration|iterations|updates?|num_updates|batch",
        "steps",
        "",
    ),
    (
        r"(?:num|total|n|cumulative|consumed|generated|trained|train|all)?[_ ]?tokens(?:_seen)?",
        "tokens",
        "",
    ),
    (
        r"(?:num|total|n|cumulative|consumed)?[_ ]?"
        r"(?:samples?|episodes?|rollouts?|prompts?|problems)(?:_seen)?",
        "samples",
        "",
    ),
    (r"(?:wall|elapsed|train|training|run)?[_ ]?(?:clock_?)?(?:time_)?h(?:ou)?rs", "hours", ""),
    (
        r"_?runtime|(?:wall|elapsed|train|training|total)?[_ ]?(?:clock_?)?(?:time_)?sec(?:ond)?s"
        r"|elapsed(?:_time)?|time_elapsed|total_time|relative time \((?:process|wall)\)",
        "hours",
        "seconds",
    ),
    (r"_?timestamp|wall[_ ]?time|time|date|datetime|created_at", "hours", "moments"),
)
_KINDS = tuple((re.compile(p, re.IGNORECASE), kind, unit) for p, kind, unit in _COMPUTE)
_PREFIX = re.compile(
    r"(?:data/)?(?:(?:train|trainer|training|eval|val|validation|test|global|compute|progress)/)?",
    re.IGNORECASE,
)
# Logged by prime-rl for the step alone; the running totals are progress/total_*.
_NOT_A_TOTAL = re.compile(
    r"progress/(?:tokens|samples|rollouts|prompts|problems)|.*/(?:batch_)?(?:samples|prompts)",
    re.IGNORECASE,
)

#: Samples behind a score.
N_EVAL = ("n_eval", "num_eval_samples", "eval/num_eval_samples", "eval_num_samples", "eval/n")
#: The column that says which run a row belongs to.
RUN = ("run_id", "run", "run_name", "run name", "experiment", "exp_name", "experiment_name",
       "trial", "trial_id", "name")  # fmt: skip
#: The column that says which metric a row holds, and the column that holds it.
METRIC = ("metric", "metric_name", "tag", "key")
VALUE = ("value", "y", "metric_value", "score")
#: The column that says what the compute column counts.
KIND = ("x_kind", "compute_kind")


def compute_kind(name: str) -> tuple[ComputeKind, Unit]:
    """What a column of this name counts, by its last part.

    >>> compute_kind("train/global_step"), compute_kind("_runtime"), compute_kind("epoch")
    (('steps', ''), ('hours', 'seconds'), ('unknown', ''))
    """
    for text in (name, name.rsplit("/", 1)[-1]):
        for pattern, kind, unit in _KINDS:
            if pattern.fullmatch(text.strip()):
                return kind, unit
    return "unknown", ""


def compute_columns(names: Iterable[str]) -> list[str]:
    """The columns that may serve as compute without being told, best first.

    >>> compute_columns(["loss", "num_tokens", "step", "epoch"])
    ['step', 'num_tokens', 'epoch']
    """
    ranked: list[tuple[int, bool, int, str]] = []
    last = len(_KINDS)
    for order, name in enumerate(names):
        bare = name[_PREFIX.match(name).end() :].strip()  # type: ignore[union-attr]
        if _NOT_A_TOTAL.fullmatch(name):
            continue
        rank = next((i for i, (p, _, _) in enumerate(_KINDS) if p.fullmatch(bare)), None)
        if rank is None and bare.lower() in {"x", "c", "compute", "epoch"}:
            rank = last if bare.lower() != "epoch" else last + 1
        if rank is not None:
            # W&B's own _step counts calls of log, not steps of training.
            ranked.append((rank, name == "_step", order, name))
    return [name for *_, name in sorted(ranked)]


def score_columns(names: Iterable[str]) -> tuple[list[str], Stage | None]:
    """The columns that the first matching line of the table names, and whether they are held out.

    Of columns that differ only in the k of `mean@k`, the one with the most samples is kept.

    >>> score_columns(["reward", "val-core/gsm8k/acc/mean@4", "val-core/gsm8k/acc/mean@16"])
    (['val-core/gsm8k/acc/mean@16'], 'validation')
    """
    names = list(names)
    for known in SCORES:
        found = [n for n in names if known.pattern.fullmatch(n.strip())]
        if found:
            return _most_samples(found), known.stage
    return [], None


def is_training(name: str) -> bool:
    """Whether a score of this name was taken on the training prompts."""
    found, stage = score_columns([name])
    return bool(found) and stage == "training"


def _most_samples(names: list[str]) -> list[str]:
    best: dict[str, tuple[int, str]] = {}
    for name in names:
        stem, _, k = name.rpartition("@")
        key, size = (stem, int(k)) if stem and k.isdigit() and len(k) < 9 else (name, 0)
        if key not in best or size > best[key][0]:
            best[key] = (size, name)
    return [name for _, name in best.values()]
