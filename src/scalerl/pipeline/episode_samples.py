"""Training episodes for the record: a few of each step, with the source of every token."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from scalerl.algorithm.episode import Episode, TokenRow
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.transcripts import play_of
from scalerl.pipeline.validation import question_text
from scalerl.runs.lines import EpisodeLine, SegmentSample, VersionRun
from scalerl.tasks.task import seed_from

#: Step at which the samples may have taken half of their bytes.
HALF_STEP = 1000
#: Digits of a log-prob: differences below this are rounding, and four digits halve the file.
DIGITS = 4


def bytes_at(step: int, limit: int) -> int:
    """The bytes that the samples of a run may have taken at a step. They approach the limit slowly,
    so that a run of long episodes has samples from its end too, however long it becomes.

    >>> [bytes_at(step, 100) for step in (100, 1_000, 9_000)]
    [9, 50, 90]
    """
    return limit * step // (step + HALF_STEP)


def sample_episodes(setup: RunSetup, step: int, taken: Sequence[PendingGroup]) -> list[EpisodeLine]:
    """The episodes of a batch that are recorded: those with the smallest hash, so that they are
    neither the first nor the shortest, and that a repeated step gives the same."""
    draws = (
        (seed_from(setup.recipe.seed, "record", step, p.key, n), i, n)
        for i, p in enumerate(taken)
        if p.group is not None
        for n in range(len(p.group.episodes))
    )
    chosen = heapq.nsmallest(setup.recipe.record.episodes_per_step, draws)
    return [_line(setup, step, taken[i], n) for _, i, n in chosen]


def _line(setup: RunSetup, step: int, p: PendingGroup, n: int) -> EpisodeLine:
    assert p.group is not None, "the trainer takes groups that are ready"
    episode: Episode = p.group.episodes[n]
    scores = [p.scores[row] for row in sorted(p.scores)]
    return EpisodeLine(
        step=step,
        prompt=p.prompt.id,
        task=p.prompt.task,
        question=question_text(p.prompt),
        reward=episode.reward,
        turn_rewards=episode.turn_rewards,
        correct=episode.correct,
        # A checkpoint keeps the rewards of finished groups and not the reasons.
        why=scores[n].why if scores else "",
        finish=episode.finish,
        play=play_of(episode),
        rows=tuple(tuple(_segments(setup, row)) for row in episode.rows),
    )


def _segments(setup: RunSetup, row: TokenRow) -> Iterator[SegmentSample]:
    at = 0
    for segment in row.segments:
        begin, at = at, at + segment.tokens
        token_ids = row.token_ids[begin:at].tolist()
        logprobs = None
        if segment.source == "policy":
            # As float64, in which four digits stay four digits; + 0.0 makes -0.0 a plain zero.
            rounded = np.round(row.logprobs[begin:at].astype(np.float64), DIGITS) + 0.0
            logprobs = tuple(rounded.tolist())
        yield SegmentSample(
            source=segment.source,
            tokens=segment.tokens,
            text=str(setup.tokenizer.decode(token_ids, skip_special_tokens=False)),
            token_ids=tuple(token_ids),
            versions=tuple(VersionRun(*run) for run in segment.versions) or None,
            logprobs=logprobs,
            reward=segment.reward,
        )
