"""The names frameworks log under: which column is the score, which is the compute.

One table for scores, in order of preference: the first line that matches a column with numbers
in it wins, and validation comes before training. One table for compute. And the words by which
columns say what a row is about: its run, its metric, its split.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from scalerl.runs.record import ComputeKind, Stage


def _scores(stage: Stage, *lines: tuple[str, str]) -> tuple[tuple[Stage, re.Pattern[str]], ...]:
    """What these patterns for the name of a score, each after its framework, were taken on."""
    # verl's file logger nests its metrics under "data".
    return tuple(
        (stage, re.compile(f"(?:data/)?(?:{pattern})", re.IGNORECASE)) for _, pattern in lines
    )


_HELD_OUT = r"(?:val|valid|validation|evals?|evaluations?|test|dev|heldout|held_out)"
_TRAINED = r"(?:train|training|rollouts?|rewards?|env|objective|critic|actor|policy|batch)"
#: A filter of lm-eval may stand behind it: `exact_match,strict-match`.
_RIGHT = (
    r"(?:acc|accuracy|pass_?rate|pass(?:@|_at_?)1|(?:solved?|success|win|answer|correct|resolved?)"
    r"_?rate|(?:mean|avg)@\d+|correct|correctness|solved|success|passed|exact_match|p?q?em"
    r"|acc_norm|extractive_match|primary_score|pass@1:\w+)(?:,[\w\-]+)?"
)

_NO_SCORE = r".*(?:std|stderr|_se$|min|max|len|tok|count|num|time|format|best|maj|loss)"

SCORES: tuple[tuple[Stage, re.Pattern[str]], ...] = (
    *_scores(
        "validation",
        ("scalerl", r"eval/pass_rate"),
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
        ("EasyR1", r"val/accuracy_reward"),
        ("any", rf"{_HELD_OUT}[/_.\- ](?:.+[/_.\- ])?{_RIGHT}"),
        ("any", rf"{_HELD_OUT}[/_.\- ](?:.+[/_.\- ])?score(?:s|/mean)?"),
        ("TRL", r"eval[_/]reward"),
        ("TRL", r"eval[_/]rewards/.+/mean"),
        ("AReaL", r"eval-rollout/(?:task_)?reward"),
        ("any", rf"{_HELD_OUT}[/_.\- ](?:.+[/_.\- ])?reward(?:/mean|_mean)?"),
        ("any", rf"(?!{_NO_SCORE}){_HELD_OUT}[/_.\- ](?:.+[/_.\- ])?{_RIGHT}[/_.\- ].+"),
    ),
    # A bare name: what stands beside it tells more (select.py).
    *_scores(
        "unknown",
        ("any", rf"(?!{_TRAINED}[/_.\- ])(?:.+[/_.\- ])?{_RIGHT}"),
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
        ("any", rf"{_TRAINED}[/_.\- ](?:.+[/_.\- ])?{_RIGHT}"),
        ("any", rf"{_TRAINED}[/_.\- ](?:.+[/_.\- ])?(?:score|rewards?)(?:/mean)?"),
        ("any", r"(?:mean|avg|average|total)_reward|reward_mean|(?:objective/)?scores"),
    ),
)

#: How to read a compute column: as it is, as seconds, or as moments in time.
Unit = Literal["", "seconds", "moments"]

# In order of preference. A column of GPU-hours or FLOPs was logged on purpose; steps are on every
# row of every log; tokens, samples and the clock are used only where there is nothing else.
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
_STEPS = next(i for i, (_, kind, _) in enumerate(_KINDS) if kind == "steps")
_PLAIN = frozenset({"x", "c", "compute", "epoch"})
_PREFIX = re.compile(
    r"(?:data/)?(?:(?:train|trainer|training|eval|val|validation|test|global|compute|progress)/)?",
    re.IGNORECASE,
)
#: Steps under a framework's own name (`grpo_step`, `system/step`): used if they count up.
_STEP_LIKE = re.compile(
    r"(?!.*(?:per_|tim(?:e|ing)|sec|second|_ms|perf/|max_|total_|num_|warmup|save|log))"
    r"(?:.+[/_.\- ])?(?:steps?|iter|iteration|batch|round|update|checkpoint|ckpt)"
    r"(?:_(?:idx|id|num|number|count))?",
    re.IGNORECASE,
)
# Logged by prime-rl for the step alone; the running totals are progress/total_*. Everything under
# compute/, as our own record has it, is a running total.
_NOT_A_TOTAL = re.compile(
    r"progress/(?:tokens|samples|rollouts|prompts|problems)"
    r"|(?!compute/).*/(?:batch_)?(?:samples|prompts)",
    re.IGNORECASE,
)

#: Samples behind a score.
N_EVAL = ("n_eval", "num_eval_samples", "eval/num_eval_samples", "eval_num_samples", "eval/n")
#: The same if every row has one number, and the scores are multiples of one over it.
MAYBE_N_EVAL = re.compile(
    r"(?:.+/)?(?:n|num|total)?_?(?:samples|questions|problems|prompts|examples|items)",
    re.IGNORECASE,
)
#: The column that says which run a row belongs to.
RUN = ("run_id", "run", "run_name", "run name", "experiment", "exp_name", "experiment_name",
       "trial", "trial_id", "name")  # fmt: skip
#: What a run is called, where a column of ids tells runs apart.
RUN_NAME = ("run_name", "run name", "run.name", "display_name", "exp_name", "experiment_name",
            "name", "run", "experiment")  # fmt: skip
#: Columns that name runs if rows of one compute differ in them.
CONDITION = ("condition", "variant", "recipe", "method", "algorithm", "algo", "arm", "setting",
             "treatment", "ablation", "exp", "config", "config_name", "label", "group", "model",
             "model_name", "policy", "agent", "system", "job", "job_id", "dataset", "task",
             "benchmark", "env", "eval_set", "seed", "replicate", "rep", "fold")  # fmt: skip
#: Columns that say which prompt, answer or group of a step a row is about: they name no runs.
ITEM = re.compile(
    r"(?:.*[/_.\- ])?(?:prompts?|questions?|problems?|answers?|responses?|completions?|outputs?"
    r"|samples?|examples?|items?|uid|uuid|index|idx|instance(?:_id)?|group|rank|worker)"
    r"(?:_?(?:id|idx|index|uid|text|hash))?",
    re.IGNORECASE,
)
#: The column that says whether a row is of training or of an evaluation.
SPLIT = ("type", "split", "phase", "kind", "event", "stage", "mode", "data_split", "event_type",
         "record_type", "row_type", "log_type", "subset", "partition")  # fmt: skip
_HELD_OUT_VALUE = re.compile(rf"(?:.*[/_.\- ])?{_HELD_OUT}(?:uate)?(?:[/_.\- ].*)?", re.IGNORECASE)
_TRAINED_VALUE = re.compile(
    r"(?:.*[/_.\- ])?(?:train(?:ing)?|rollouts?|completions|steps?|updates?|grpo|ppo|iteration"
    r"|optim)(?:[/_.\- ].*)?",
    re.IGNORECASE,
)
#: Metrics of a training step: a bare score on their rows was taken on the training prompts.
_OF_A_STEP = re.compile(
    r"(?:.*[/_.\- ])?(?:loss|kl|grad(?:ient)?(?:_?norm)?|lr|learning_rate|entropy|advantages?"
    r"|clip_?(?:frac|ratio)|logprobs?)(?:[/_.\- ].*)?",
    re.IGNORECASE,
)
#: Scores of something else than being right.
_BESIDE = re.compile(
    r"(?:.*[/_.\- ])?(?:format\w*|len|length|tokens?|truncat\w*|std|stderr|min|max|best|worst|maj"
    r"|majority|parse\w*|extract\w*|entropy|ratio|delta|diff|gap|baseline|time|count|num|frac\w*)"
    r"(?:[/_.\- @].*)?",
    re.IGNORECASE,
)
#: Words of metrics that are no scores, in the name of a column: exactly, or inside a longer word.
_METRIC_WORDS = frozenset({"lr", "kl", "len", "std", "err", "id", "idx", "mfu", "tps", "per"})
_METRIC_PARTS = re.compile(
    r"loss|learning|entropy|grad|norm|length|time|timing|speed|stderr|error|clip|ratio|reward"
    r"|memory|runtime|second|throughput|advantage|logprob",
)
#: Words before such a word that make it the name of a run: `no_kl`, `without-clip`.
_WITHOUT = frozenset({"no", "without", "with", "wo", "w"})
_OVERALL = re.compile(r"all|overall|average|avg|mean|macro|total|aggregate", re.IGNORECASE)
_MEASURES = ("primary_score", "accuracy", "acc", "pass_rate", "pass@1", "solve_rate",
             "success_rate", "correct", "correct_rate", "answer_rate", "exact_match",
             "extractive_match", "qem", "pqem", "em", "win_rate", "solved", "success",
             "passed")  # fmt: skip
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
    return ("steps", "") if _STEP_LIKE.fullmatch(name.strip()) else ("unknown", "")


def compute_columns(names: Iterable[str]) -> list[str]:
    """The columns that may serve as compute, by their names, best first.

    >>> compute_columns(["loss", "num_tokens", "step", "epoch"])
    ['step', 'num_tokens', 'epoch']
    """
    ranked: list[tuple[float, bool, int, str]] = []
    last = len(_KINDS)
    for order, name in enumerate(names):
        bare = _bare(name)
        if _NOT_A_TOTAL.fullmatch(name):
            continue
        rank: float | None = next(
            (i for i, (p, _, _) in enumerate(_KINDS) if p.fullmatch(bare)), None
        )
        if rank is None and bare.lower() in _PLAIN:
            rank = last if bare.lower() != "epoch" else last + 1
        if rank is None and _STEP_LIKE.fullmatch(name.strip()):
            rank = _STEPS + 0.5
        if rank is not None:
            # W&B's own _step counts calls of log, not steps of training.
            ranked.append((rank, name == "_step", order, name))
    return [name for *_, name in sorted(ranked)]


def _bare(name: str) -> str:
    """Without the stage that it begins with; what it begins with may be nothing.

    >>> _bare("train/step"), _bare("step")
    ('step', 'step')
    """
    return _PREFIX.sub("", name, count=1).strip()


def is_plain_compute(name: str) -> bool:
    """Whether a column of this name is compute whatever its values are like."""
    bare = _bare(name)
    return any(p.fullmatch(bare) for p, _, _ in _KINDS) or bare.lower() in _PLAIN


def score_columns(names: Iterable[str]) -> tuple[list[str], Stage | None]:
    """The columns that the first matching line of the table names, and whether they are held out.

    Of columns that differ only in the k of `mean@k`, the one with the most samples is kept.

    >>> score_columns(["reward", "val-core/gsm8k/acc/mean@4", "val-core/gsm8k/acc/mean@16"])
    (['val-core/gsm8k/acc/mean@16'], 'validation')
    """
    names = list(names)
    for stage, pattern in SCORES:
        found = [n for n in names if pattern.fullmatch(n.strip())]
        if found:
            return _most_samples(found), stage
    return [], None


def best_score(found: list[str]) -> str | None:
    """Of several scores the share of right answers over everything; None if they are of several
    sets, between which the user has to choose.

    >>> best_score(["eval/format_accuracy", "eval/accuracy"])
    'eval/accuracy'
    >>> best_score(["eval/math/accuracy", "eval/code/accuracy"])
    """
    names = [n for n in found if not _BESIDE.fullmatch(n)] or found
    if len(names) == 1:
        return names[0]
    whole = [n for n in names if any(_OVERALL.fullmatch(part) for part in n.split("/")[:-1])]
    if len(whole) == 1:
        return whole[0]
    stems = {n: tuple(n.split("/")[:-1]) for n in names}
    shortest = min(stems.values(), key=len)
    above = [n for n in names if stems[n] == shortest]
    if len(above) == 1 and all(stem[: len(shortest)] == shortest for stem in stems.values()):
        return above[0]
    if len(set(stems.values())) > 1:
        return None
    by_measure = {re.split(r"[/,]", n)[len(shortest)].lower(): n for n in reversed(names)}
    return next((by_measure[m] for m in _MEASURES if m in by_measure), None)


def is_about_being_right(name: str) -> bool:
    """Whether a name ends in a word for the share of right answers.

    >>> is_about_being_right("error_analysis/accuracy"), is_about_being_right("val_error")
    (True, False)
    """
    return bool(re.fullmatch(rf"(?:.+[/_.\- ])?{_RIGHT}", name.strip(), re.IGNORECASE))


def known_scores(names: Iterable[str]) -> list[str]:
    """All columns with the name of a score, the likeliest first: those about being right, then in
    the order of the table above.

    >>> known_scores(["reward", "rewards/format/mean", "rewards/accuracy_reward/mean", "loss"])
    ['rewards/accuracy_reward/mean', 'reward']
    """
    names = list(names)
    found = [n for _, pattern in SCORES for n in names if pattern.fullmatch(n.strip())]
    found = [n for n in dict.fromkeys(found) if not _BESIDE.fullmatch(n)]
    return sorted(found, key=lambda n: not re.search(r"acc|pass|correct|solve", n, re.IGNORECASE))


def stage_of(name: str) -> Stage:
    """Whether a score of this name is held out, of training, or does not say.

    >>> stage_of("eval/accuracy"), stage_of("reward/pass@1"), stage_of("accuracy")
    ('validation', 'training', 'unknown')
    """
    _, stage = score_columns([name])
    if stage in ("validation", "training"):
        return stage
    if re.match(rf"{_HELD_OUT}[/_.\- ]", name, re.IGNORECASE):
        return "validation"
    return "training" if re.match(rf"{_TRAINED}[/_.\- ]", name, re.IGNORECASE) else "unknown"


def stage_of_rows(value: str) -> Stage:
    """What rows are about, by a word in their split column or in the name of their file.

    >>> stage_of_rows("eval_step"), stage_of_rows("rollouts"), stage_of_rows("checkpoint")
    ('validation', 'training', 'unknown')
    """
    if _HELD_OUT_VALUE.fullmatch(value):
        return "validation"
    return "training" if _TRAINED_VALUE.fullmatch(value) else "unknown"


def under_stage(name: str, value: str) -> str:
    """The column's name with the word before it that says what its rows are about.

    >>> under_stage("acc", "test"), under_stage("acc", "rollout"), under_stage("eval/acc", "x")
    ('test/acc', 'train/rollout/acc', 'eval/acc')
    """
    if stage_of(name) == "validation" or re.match(r"train(?:ing)?[/_]", name, re.IGNORECASE):
        return name
    stage = stage_of_rows(value)
    if stage == "validation":
        known = re.fullmatch(_HELD_OUT, value, re.IGNORECASE)
        return f"{value}/{name}" if known else f"eval/{value}/{name}"
    if stage == "training":
        return f"train/{name}" if value.lower().startswith("train") else f"train/{value}/{name}"
    return f"{value}/{name}"


def is_held_out(name: str) -> bool:
    """Whether a name begins with a word for held-out prompts, whatever the metric.

    >>> is_held_out("eval/aime"), is_held_out("evaluator"), is_held_out("train/reward")
    (True, False, False)
    """
    return bool(re.match(rf"(?:data/)?{_HELD_OUT}[/_.\- ]", name.strip(), re.IGNORECASE))


def is_beside(name: str) -> bool:
    """Whether a metric is about something else than being right: a format, a length, a ratio."""
    return bool(_BESIDE.fullmatch(name))


def is_other_metric(name: str) -> bool:
    """Whether a column is called after a metric that is no score, rather than after a run.

    >>> names = ("actor/grad_norm", "mean_kl", "grpo_lr1e-6", "kl-0.01", "no_kl")
    >>> [is_other_metric(n) for n in names]
    [True, True, False, False, False]
    """
    words = [w for w in re.split(r"[/_.\- ]+", name.strip().lower()) if w]
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if before in _WITHOUT or after[:1].isdigit() or any(ch.isdigit() for ch in word):
            continue
        if word in _METRIC_WORDS or _METRIC_PARTS.search(word):
            return True
    return False


def is_of_a_step(name: str) -> bool:
    """Whether a metric of this name is logged for a training step."""
    return bool(_OF_A_STEP.fullmatch(name)) and stage_of(name) != "validation"


def says_what_of(name: str) -> bool:
    """Whether a score's name says of which set it is: `math500_accuracy`, not `accuracy`."""
    return not re.fullmatch(rf"(?:data/)?(?:{_RIGHT}|score|y|value)", name.strip(), re.IGNORECASE)


def _most_samples(names: list[str]) -> list[str]:
    best: dict[str, tuple[int, str]] = {}
    for name in names:
        stem, _, k = name.rpartition("@")
        key, size = (stem, int(k)) if stem and k.isdigit() and len(k) < 9 else (name, 0)
        if key not in best or size > best[key][0]:
            best[key] = (size, name)
    return [name for _, name in best.values()]
