"""The schema of the run record: one type for each file, each field with its meaning and unit.

A new column is added here and nowhere else: the store writes it, readers take it from the type,
and docs/reference/run-record.md lists it (`make docs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

from scalerl.runs.compute import Compute, LedgerLine
from scalerl.runs.fields import Record, about, record


class Line(Record):
    """One line of a file of lines."""

    __slots__ = ()
    FILE: ClassVar[str]
    step: int


# -- steps.jsonl ----------------------------------------------------------------------------------


@record
class Ratio(Record):
    """π_train / π_gen over the tokens in the loss."""

    mean: float = about("mean")
    max: float = about("largest")
    min: float = about("smallest")
    truncated: float = about("share of tokens with a ratio that the loss capped or clipped")


@record
class LogprobGap(Record):
    """|log π_train − log π_gen| over the tokens in the loss."""

    mean: float = about("mean", unit="nats")
    max: float = about("largest", unit="nats")
    kl: float = about("k3 estimate of KL(gen ‖ train)", unit="nats")


@record
class Staleness(Record):
    """The trainer's version minus each token's."""

    mean: float = about("mean over tokens", unit="versions")
    max: int = about("largest", unit="versions")
    histogram: dict[int, int] = about("tokens of each staleness")
    gap: dict[int, float] | None = about(
        "mean |log π_train − log π_gen| of the tokens of each staleness",
        unit="nats",
        default=None,
    )
    kl: dict[int, float] | None = about(
        "k3 estimate of KL(gen ‖ train) over the tokens of each staleness",
        unit="nats",
        default=None,
    )


@record
class Clipping(Record):
    """Tokens in the loss by the probability with which the generator drew them, in ten bins of
    width 0.1 from [0, 0.1) to [0.9, 1]."""

    tokens: tuple[int, ...] = about("tokens in each bin")
    truncated: tuple[float, ...] = about(
        "share of the tokens of each bin with a ratio that the loss capped or clipped; 0 in an "
        "empty bin"
    )


@record
class Lengths(Record):
    """Lengths of the batch's rollouts."""

    mean: float = about("mean", unit="tokens")
    max: int = about("longest", unit="tokens")
    sd: float | None = about("standard deviation", unit="tokens", default=None)
    alike: float | None = about(
        "share of the variance that is between prompts: 1 if the rollouts of a prompt are all of "
        "one length",
        default=None,
    )
    histogram: dict[int, int] = about(
        "rollouts of each length, rounded down to a power of the fourth root of 2",
        default_factory=dict,
    )


@record
class GroupSeconds(Record):
    """Mean seconds of a batch's groups in each stage."""

    writing: float = about("from its start until all its rollouts were written", unit="seconds")
    checking: float = about("until all were scored", unit="seconds")
    ready: float = about("until the trainer took it", unit="seconds")


@record
class FilterCounts(Record):
    """What the filters left of a batch."""

    prompts: int = about("prompts in the batch")
    rollouts: int = about("rollouts in the batch")
    unscored: int = about("rollouts without a reward")
    truncated: int = about("rollouts that were cut off")
    zero_variance_prompts: int = about("prompts with the same reward for all rollouts")
    effective_prompts: int = about("prompts that were trained on")
    effective_rollouts: int = about("rollouts that were trained on")


@record
class EpisodePlay(Record):
    """What happened in one episode besides its tokens."""

    turns: int = about("turns that the policy wrote")
    tool_calls: int = about("tool calls")
    tool_failures: int = about("tool calls that could not be read, or that failed")
    forks: int = about("new rows, because the history was rewritten")
    environment_seconds: float = about("time in the environment", unit="seconds")

    @property
    def has_environment(self) -> bool:
        """Whether the episode was played in an environment. (One that ends it after the first turn
        has taken some time.)"""
        return self.turns != 1 or self.environment_seconds > 0


@record
class Play(Record):
    """What episodes of several turns did, as means over the episodes of a batch or a validation."""

    turns: float = about("turns that the policy wrote")
    turns_max: int = about("most turns of an episode")
    tool_calls: float = about("tool calls")
    tool_failures: float = about("tool calls that could not be read, or that failed")
    forks: float = about("new rows, because the history was rewritten")
    failed: float = about("share of episodes that the environment failed, or that took too long")
    out_of_turns: float = about("share of episodes that reached the limit of turns")
    environment_seconds: float = about("time in the environment", unit="seconds")

    @staticmethod
    def from_episodes(episodes: Iterable[tuple[EpisodePlay, str]]) -> Play | None:
        """Means over episodes, each given with its finish; None if none has an environment.

        >>> one = EpisodePlay(3, 2, 1, 0, 0.5)
        >>> Play.from_episodes([(one, "stop"), (one, "turns")]).out_of_turns
        0.5
        """
        found = list(episodes)
        if not any(play.has_environment for play, _ in found):
            return None

        def mean(values: Iterable[float]) -> float:
            return sum(values) / len(found)

        return Play(
            turns=mean(play.turns for play, _ in found),
            turns_max=max(play.turns for play, _ in found),
            tool_calls=mean(play.tool_calls for play, _ in found),
            tool_failures=mean(play.tool_failures for play, _ in found),
            forks=mean(play.forks for play, _ in found),
            failed=mean(finish == "failed" for _, finish in found),
            out_of_turns=mean(finish == "turns" for _, finish in found),
            environment_seconds=mean(play.environment_seconds for play, _ in found),
        )


@record
class StepLine(Line):
    """One optimiser step: statistics of its batch, and what the trainer reports."""

    FILE: ClassVar[str] = "steps.jsonl"

    step: int = about("version made by this step", needed=True)
    loss: float = about("the loss")
    grad_norm: float = about("norm of the gradient, before it is clipped")
    lr: float = about("learning rate")
    forward_tokens: int = about("tokens that went through the trainer")
    loss_tokens: int = about("tokens in the loss")
    micro_batches: int = about("parts that the batch was cut into, to fit the memory")
    seconds: float = about("what the trainer's pass took", unit="seconds")
    tokens: int = about("tokens that the numbers below are about")
    ratio: Ratio = about("π_train / π_gen over tokens")
    ess: float = about("effective sample size of the ratios, as a share of the tokens")
    logprob_gap: LogprobGap = about("|log π_train − log π_gen| over tokens")
    non_finite: int = about("tokens left out because a log-prob was not finite")
    entropy: float | None = about("mean over tokens; null where it was not computed", unit="nats")
    staleness: Staleness = about("how old the tokens were")
    kl: float = about("KL penalty that was paid, for the distance to the starting model; else 0")
    metrics: dict[str, float] = about(
        "metrics of the loss, by name; and of reward functions, as `reward/NAME`"
    )
    reward: float | None = about("mean over rollouts that have one; null where none has")
    pass_rate: float = about("share of rollouts that are right")
    truncated: float = about("share of rollouts cut off by the token limit")
    interrupted: float = about(
        "share of rollouts with thinking ended by its budget and an answer after it"
    )
    mixed_versions: float = about("share of rollouts that more than one version wrote")
    prompts: tuple[str, ...] = about("ids of the batch's prompts")
    zero_variance: float = about("share of prompts with the same reward for all rollouts")
    length: Lengths = about("length of the rollouts")
    filtered: FilterCounts = about("counts of the filters")
    retired: int = about("prompts that No-Positive-Resampling has retired so far")
    compute: Compute = about("compute so far")
    ledger: LedgerLine = about("what the run has used so far")
    context_tokens: int = about(
        "tokens of the batch that the engine did not write: prompts, each once, and what came "
        "between turns",
        default=0,
    )
    publish_seconds: float = about(
        "what publishing the weights took after the pass", unit="seconds", default=0.0
    )
    always_solved: float | None = about(
        "share of prompts with only right rollouts; null in records of earlier versions",
        default=None,
    )
    never_solved: float | None = about(
        "share of prompts without a right rollout; null in records of earlier versions",
        default=None,
    )
    group_seconds: GroupSeconds | None = about("how long groups were in each stage", default=None)
    clipping: Clipping | None = about(
        "which tokens the loss capped or clipped; left out where no token is in the loss",
        default=None,
    )
    far_gradient: float | None = about(
        "share of the gradient's weight, the sum over tokens of |∂ loss / ∂ log π_train|, that "
        "comes from tokens with a ratio above 2 or below 1/2; left out without a gradient",
        default=None,
    )
    gradient_chance: float | None = about(
        "share of prompts that are expected to have both right and wrong rollouts: the mean of "
        "1 − pⁿ − (1−p)ⁿ over prompts with n scored rollouts, a share p of them right",
        default=None,
    )
    unscored_why: dict[str, int] | None = about(
        "why rollouts have no reward: reason and number of rollouts; left out where all have one",
        default=None,
    )
    play: Play | None = about(
        "turns, tools and environments; left out where all episodes have one turn", default=None
    )


# -- evals.jsonl ----------------------------------------------------------------------------------


@record
class SetScore(Record):
    """The score of one further set of held-out prompts."""

    pass_rate: float | None = about(
        "mean over prompts of the share of right answers among those scored; null where it failed"
    )
    stderr: float | None = about("standard error of that mean; null for a single prompt")
    n_prompts: int = about("prompts")
    k: int = about("answers to each")
    scored: int | None = about("answers that could be scored", default=None)
    failed: str | None = about(
        "why there is no pass rate: the commonest reason of answers without a score; left out "
        "where there is one",
        default=None,
    )


@record
class EvalLine(Line):
    """One validation: a point of the curve. Which prompts were answered right, and some answers to
    read, are in `evals/step_N.json`."""

    FILE: ClassVar[str] = "evals.jsonl"

    step: int = about("optimiser steps behind the weights that answered", needed=True)
    version: int = about("version of those weights: the same number")
    pass_rate: float | None = about(
        "mean over prompts of the share of right answers among those scored; null where it failed"
    )
    stderr: float | None = about("standard error of that mean; null for a single prompt")
    n_prompts: int = about("held-out prompts")
    k: int = about("answers to each")
    unscored: int = about("answers that could not be scored")
    truncated: float = about("share of answers that were cut off")
    tasks: dict[str, float] = about(
        "pass rate of each task of a mixture; without those of which no answer could be scored"
    )
    compute: Compute = about("compute so far")
    validation_hours: float = about("device-hours spent on validation so far, in no other number")
    downstream: dict[str, SetScore] | None = about(
        "further sets, by name; left out where there are none. To fit one: "
        "`--y downstream/NAME/pass_rate`",
        default=None,
    )

    temperatures: dict[str, SetScore] | None = about(
        'the held-out prompts at further temperatures, such as "0"; left out where there are none. '
        "To fit one: `--y temperatures/0/pass_rate`",
        default=None,
    )

    # With a default, because records of earlier versions do not have it.
    scored: int | None = about("answers that could be scored: those behind it", default=None)
    failed: str | None = about(
        "why the validation failed: the commonest reason of answers without a score, of which "
        "there were too many. Such a line is no point of the curve; left out otherwise",
        default=None,
    )
    play: Play | None = about(
        "turns, tools and environments of the held-out prompts of the task; left out where all "
        "answers have one turn",
        default=None,
    )

    @property
    def n_eval(self) -> int:
        """The size of the validation: answers behind its pass rate. (Records of earlier versions
        do not say how many were scored.)"""
        return self.n_prompts * self.k if self.scored is None else self.scored


# -- episodes/ ------------------------------------------------------------------------------------


class VersionRun(NamedTuple):
    """Consecutive tokens of one version, in JSON `[version, tokens]`."""

    version: int
    tokens: int


@record
class SegmentSample(Record):
    """Consecutive tokens of one source."""

    source: Literal["context", "policy", "forced"] = about(
        "`context`: prompt, tool output or environment message; `policy`: sampled by the model, "
        "the only tokens in the loss; `forced`: written by the length control"
    )
    tokens: int = about("number of tokens")
    text: str = about("text of the tokens, special ones included")
    token_ids: tuple[int, ...] = about("the tokens")
    versions: tuple[VersionRun, ...] | None = about(
        "versions of the weights that wrote them, as `[version, tokens]`; left out for context",
        default=None,
    )
    logprobs: tuple[float, ...] | None = about(
        "log-prob of each token as it was sampled, to 4 digits; left out for tokens that the "
        "policy did not sample",
        unit="nats",
        default=None,
    )
    reward: float | None = about(
        "reward of the turn that this segment ends; left out where there is none", default=None
    )
    token_lengths: tuple[int, ...] | None = about(
        "characters of `text` that each token is, so that the text can be cut into tokens without "
        "a tokenizer; left out where the text is not the tokens' one after the other",
        unit="characters",
        default=None,
    )
    ratios: tuple[float, ...] | None = about(
        "probability that the trainer gave each sampled token before the step, over the one it was "
        "sampled with; left out where a filter kept the episode out of the step",
        default=None,
    )
    entropies: tuple[float, ...] | None = about(
        "entropy of the trainer's distribution at each sampled token; left out likewise",
        unit="nats",
        default=None,
    )


@record
class EpisodeLine(Line):
    """One episode that a step learnt from, chosen by a hash of the step and the episode
    (`record.episodes_per_step`), with the source of every token."""

    FILE: ClassVar[str] = "episodes/training.jsonl"

    step: int = about("version made by the step", needed=True)
    prompt: str = about("id of the prompt")
    task: str = about("task of the prompt: of a mixture, which part")
    question: str = about("text of the prompt, without what an environment adds to it")
    reward: float | None = about("what it earned at its end; null where it could not be scored")
    turn_rewards: tuple[float, ...] = about("rewards of its turns, in order")
    correct: bool | None = about("whether it is right; null where it could not be scored")
    why: str = about("what the check found, in one line; empty after a resume from a checkpoint")
    finish: str = about("`stop`, `length`, `interrupted`, `turns` or `failed`")
    play: EpisodePlay = about("turns, tools and environment")
    rows: tuple[tuple[SegmentSample, ...], ...] = about(
        "what the model saw, the prompt first: a list of segments for each row; every row after "
        "the first is a fork"
    )


@record
class ValidationEpisodeLine(EpisodeLine):
    """One answer of a validation, in the form of a training episode and without log-probs. All
    answers are kept while `record.validation_megabytes` allows; after that those to fewer prompts,
    chosen by a hash of the prompt, so that the same prompts have answers at every validation."""

    FILE: ClassVar[str] = "episodes/validation.jsonl"

    set: str = about('name of its set; "" for the held-out prompts of the task itself', default="")


#: Files of episodes in a run directory, by the source that readers name them with.
EPISODE_FILES: dict[str, type[EpisodeLine]] = {
    "training": EpisodeLine,
    "validation": ValidationEpisodeLine,
}


# -- events.jsonl ---------------------------------------------------------------------------------

EventKind = Literal[
    "note", "warning", "lost", "checker", "refused", "scale", "resume", "branch", "end", "failed"
]


@record
class KnobChange(Record):
    """A field of the recipe that a run goes on with changed."""

    key: str = about("dotted key of the recipe", needed=True)
    old: str = about("its value before, as recipes write it; `unset` where it had none")
    new: str = about("its value since")
    by_hand: bool = about("whether it was changed in `recipe.toml`, and not by a command")


@record
class EventLine(Line):
    """What else happened; never cut. `note`: what was settled for the run. `warning`: something
    goes wrong, `why`. `lost`: a process died or fell silent. `checker`: a verifier hung or died, or
    answers have no score, `why`. `refused`: a batch with a gradient that is not finite, with its
    `prompts`. `scale`: generators join or leave, with the `changes`. `resume`: the run goes on from
    a checkpoint, with `lost_device_seconds`. `branch`: it goes on from here with `changes` of its
    recipe, and where it goes on from an earlier checkpoint, `branch` is where the record as it was
    is kept. `end`: with its `reason`. `failed`: `why`. A run that was killed has neither of the
    last two."""

    FILE: ClassVar[str] = "events.jsonl"

    step: int = about("version at that moment", needed=True)
    event: EventKind = about("what it was", needed=True)
    why: str | None = about("in one line", default=None)
    reason: str | None = about("why the run ended", default=None)
    prompts: tuple[str, ...] | None = about("ids of the prompts it is about", default=None)
    answers: int | None = about("answers without a score for this reason, so far", default=None)
    lost_device_seconds: float | None = about(
        "spent on what has to be done again", unit="device-seconds", default=None
    )
    branch: str | None = about("directory, inside the run's, of the record as it was", default=None)
    changes: tuple[KnobChange, ...] | None = about(
        "fields of the recipe that changed", default=None
    )


# -- status.json ----------------------------------------------------------------------------------


@record
class Status(Record):
    """What the run is doing just now: replaced every second, for `scalerl doctor`."""

    FILE: ClassVar[str] = "status.json"

    step: int = about("version now")
    waits_for: str = about("what the run waits for, in words", default="")
    pids: dict[str, int] = about("process ids, by name", default_factory=dict)
    silent_seconds: dict[str, float] = about(
        "time since the last message of each process", unit="seconds", default_factory=dict
    )
    starting: tuple[int, ...] = about("generators that are not up yet", default=())
    stopping: bool = about("the run was asked to end", default=False)
    rollouts: tuple[int, ...] = about("rollouts that each generator has finished", default=())
    under_way: int = about("groups between the draw of their prompt and their step", default=0)
    writing: int = about("groups that are being written", default=0)
    checking: int = about("groups that are being checked", default=0)
    time: float | None = about(
        "when it was written, in seconds since 1970; the store fills it in", default=None
    )


# -- system.jsonl ---------------------------------------------------------------------------------


@record
class GpuSample(Record):
    """One GPU at one moment."""

    busy: float = about("share of the last second in which it worked")
    memory_used: int = about("memory in use", unit="bytes")
    memory_total: int = about("its memory", unit="bytes")


@record
class SystemLine(Line):
    """The machine that the loop is on, about every 15 seconds; null for what it does not have."""

    FILE: ClassVar[str] = "system.jsonl"

    step: int = about("version at that moment", needed=True)
    time: float = about("when it was sampled", unit="seconds since 1970")
    cpu: float | None = about(
        "share of all cores' time since the sample before in which they worked, for any program"
    )
    cores: int | None = about("cores of the machine")
    memory_used: int | None = about("memory in use, by any program", unit="bytes")
    memory_total: int | None = about("memory of the machine", unit="bytes")
    memory_run: int | None = about(
        "memory that the run's processes hold; what they share is counted for each", unit="bytes"
    )
    gpus: tuple[GpuSample, ...] = about("its GPUs, in the order of the driver", default=())


# -- evals/step_N.json, answers/step_N.jsonl ------------------------------------------------------


#: Answers kept of each kind (right, wrong, interrupted) from each set: enough to read, and small
#: over hundreds of validations.
MAX_SAMPLES = 2
#: Characters kept of a question or an answer: about two screens.
MAX_CHARACTERS = 4_000


class PromptScore(NamedTuple):
    """Answers to one prompt, in JSON `[right, scored, asked]`."""

    right: int
    scored: int
    asked: int


@record
class AnswerSample(Record):
    """One answer."""

    prompt: str = about("id of the prompt")
    question: str = about("text of the prompt")
    answer: str = about(
        "what was answered, cut at 4,000 characters; of several turns, each after the role that "
        "wrote it"
    )
    correct: bool | None = about("whether it is right; null where it could not be scored")
    why: str = about("what the check found, in one line")
    finish: str = about("`stop`, `length`, `interrupted`, `turns` or `failed`")
    set: str = about('name of its set; "" for the held-out prompts of the task itself', default="")
    play: EpisodePlay | None = about(
        "turns, tools and environment; left out without an environment", default=None
    )


@record
class AnswerLine(Record):
    """One answer of `scalerl eval`, a line of `answers/step_N.jsonl`. The lines of a prompt are
    appended together, when all its answers are checked."""

    FOLDER: ClassVar[str] = "answers"

    prompt: str = about("id of the prompt", needed=True)
    n: int = about("which of its k answers, from 0", needed=True)
    task: str = about("task of the prompt: of a mixture, which part")
    question: str = about("text of the prompt")
    answer: str = about("what was answered; of several turns, each after the role that wrote it")
    correct: bool | None = about("whether it is right; null where it could not be scored")
    reward: float | None = about("what it earned; null where it could not be scored")
    why: str = about("what the check found, in one line")
    tokens: int = about("length of the answer", unit="tokens")
    truncated: bool = about("whether it was cut off")
    finish: str = about("`stop`, `length`, `interrupted`, `turns` or `failed`")
    play: EpisodePlay | None = about(
        "turns, tools and environment; left out without an environment", default=None
    )


@record
class EvalAnswers(Record):
    """The answers of one validation."""

    FOLDER: ClassVar[str] = "evals"

    step: int = about("the validation's step", needed=True)
    sets: dict[str, dict[str, PromptScore]] = about(
        'per set ("": the held-out prompts of the task itself) and prompt id: '
        "`[right, scored, asked]`, numbers of answers"
    )
    answers: tuple[AnswerSample, ...] = about(
        "of every set up to two that are right, two wrong, two interrupted"
    )

    @staticmethod
    def from_answers(step: int, answers: Iterable[AnswerSample]) -> EvalAnswers:
        """Count them all and keep the first few of each kind: in the same order at every
        validation, so that the same prompts are there to read each time.

        >>> one = AnswerSample("p1", "2+2=", "4", True, "equal", "stop")
        >>> found = EvalAnswers.from_answers(5, [one, one, one])
        >>> found.sets, len(found.answers)
        ({'': {'p1': PromptScore(right=3, scored=3, asked=3)}}, 2)
        """
        sets: dict[str, dict[str, PromptScore]] = {}
        kept: list[AnswerSample] = []
        seen: Counter[tuple[str, str]] = Counter()
        for one in answers:
            of_set = sets.setdefault(one.set, {})
            old = of_set.get(one.prompt, PromptScore(0, 0, 0))
            of_set[one.prompt] = PromptScore(
                old.right + (one.correct is True),
                old.scored + (one.correct is not None),
                old.asked + 1,
            )
            kind = _kind(one)
            if kind is not None and seen[one.set, kind] < MAX_SAMPLES:
                seen[one.set, kind] += 1
                kept.append(replace(one, question=_cut(one.question), answer=_cut(one.answer)))
        return EvalAnswers(step, sets, tuple(kept))


def _kind(one: AnswerSample) -> str | None:
    if one.finish == "interrupted":
        return "interrupted"
    return {True: "right", False: "wrong", None: None}[one.correct]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
