"""Episodes for the record, with the source of every token: a few of each step, and the answers of
validations."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from scalerl.algorithm.episode import Episode, TokenRow
from scalerl.pipeline.groups import PendingGroup
from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.transcripts import play_of
from scalerl.pipeline.validation import Validation, question_text
from scalerl.runs.lines import EpisodeLine, SegmentSample, ValidationEpisodeLine, VersionRun
from scalerl.tasks.task import seed_from

if TYPE_CHECKING:
    from scalerl.trainer.interface import TokenStats

#: Step at which the samples may have taken half of their bytes.
HALF_STEP = 1000
#: Digits of a log-prob: differences below this are rounding, and four digits halve the file.
DIGITS = 4
#: Largest difference of log-probs, in nats, of which the ratio is recorded.
MAX_GAP = 20.0
#: What decoders write for bytes that are no character.
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
#: Tokens that may make one character: a character has at most four bytes.
MAX_JOINED = 4


def bytes_at(step: int, limit: int) -> int:
    """The bytes that the samples of a run may have taken at a step. They approach the limit slowly,
    so that a run of long episodes has samples from its end too, however long it becomes.

    >>> [bytes_at(step, 100) for step in (100, 1_000, 9_000)]
    [9, 50, 90]
    """
    return limit * step // (step + HALF_STEP)


def choose_episodes(
    setup: RunSetup, step: int, taken: Sequence[PendingGroup]
) -> tuple[tuple[int, int], ...]:
    """The numbers (group, episode) of the episodes of a batch that are recorded: those with the
    smallest hash, so that they are neither the first nor the shortest, and that a repeated step
    gives the same."""
    draws = (
        (mixed(seed + n), i, n)
        for i, p in enumerate(taken)
        if p.group is not None
        for seed in [seed_from(setup.recipe.seed, "record", step, p.key)]
        for n in range(len(p.group.episodes))
    )
    chosen = heapq.nsmallest(setup.recipe.record.episodes_per_step, draws)
    return tuple((i, n) for _, i, n in chosen)


def mixed(number: int) -> int:
    """A hash of 64 bits of a number (the finaliser of splitmix64). A batch has hundreds of
    episodes: a cryptographic hash of each would cost a tiny step one part in three hundred.

    >>> mixed(1) != mixed(2), mixed(1) == mixed(1 + 2**64)
    (True, True)
    """
    mask = 2**64 - 1
    number &= mask
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
    return number ^ (number >> 31)


def sampled_lines(
    setup: RunSetup, step: int, taken: Sequence[PendingGroup], chosen: Sequence[tuple[int, int]],
    texts: dict[int, str] | None = None,
) -> list[EpisodeLine]:  # fmt: skip
    """The lines of chosen episodes. `texts` caches the texts of single tokens."""
    texts = {} if texts is None else texts
    return [_line(setup, step, taken[i], n, texts) for i, n in chosen]


def with_token_stats(
    lines: Sequence[EpisodeLine], stats: Sequence[TokenStats | None]
) -> list[EpisodeLine]:
    """The lines with the ratio and the entropy of each sampled token, where the trainer has
    computed them."""
    known = [*stats, *[None] * (len(lines) - len(stats))]
    return [
        line if each is None else replace(line, rows=_rows_with(line.rows, each))
        for line, each in zip(lines, known, strict=True)
    ]


def _rows_with(
    rows: Sequence[Sequence[SegmentSample]], stats: TokenStats
) -> tuple[tuple[SegmentSample, ...], ...]:
    at = 0
    found = []
    for row in rows:
        made = []
        for segment in row:
            if segment.source != "context":
                begin, at = at, at + segment.tokens
            if segment.source == "policy" and segment.logprobs is not None:
                gaps = stats.logprobs[begin:at].astype(np.float64) - segment.logprobs
                # A ratio beyond any use must not overflow.
                ratios = np.exp(np.clip(gaps, -MAX_GAP, MAX_GAP))
                segment = replace(
                    segment,
                    ratios=_rounded(ratios),
                    entropies=_rounded(stats.entropies[begin:at].astype(np.float64)),
                )
            made.append(segment)
        found.append(tuple(made))
    return tuple(found)


def _rounded(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Values with DIGITS digits; + 0.0 makes -0.0 a plain zero."""
    return tuple((np.round(values, DIGITS) + 0.0).tolist())


def validation_episodes(
    setup: RunSetup, step: int, validation: Validation, texts: dict[int, str] | None = None
) -> Iterator[ValidationEpisodeLine]:
    """The answers of a validation, prompt by prompt in the order of a hash of the prompt: where
    only the first can be kept, they are those to the same prompts at every validation."""
    texts = {} if texts is None else texts
    asked = sorted(
        validation.asked.values(),
        key=lambda one: seed_from(setup.recipe.seed, "record", one.set, one.prompt.id),
    )
    for one in asked:
        for episode, score in one.answered():
            yield ValidationEpisodeLine(
                step=step,
                prompt=one.prompt.id,
                task=one.prompt.task,
                question=question_text(one.prompt),
                reward=score.reward,
                turn_rewards=episode.turn_rewards,
                correct=score.correct,
                why=score.why,
                finish=episode.finish,
                play=play_of(episode),
                rows=_rows(setup, episode, texts, logprobs=False),
                set=one.set,
            )


def _line(
    setup: RunSetup, step: int, p: PendingGroup, n: int, texts: dict[int, str]
) -> EpisodeLine:
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
        rows=_rows(setup, episode, texts),
    )


def _rows(
    setup: RunSetup, episode: Episode, texts: dict[int, str], *, logprobs: bool = True
) -> tuple[tuple[SegmentSample, ...], ...]:
    return tuple(tuple(_segments(setup, row, texts, logprobs)) for row in episode.rows)


def _segments(
    setup: RunSetup, row: TokenRow, texts: dict[int, str], with_logprobs: bool
) -> Iterator[SegmentSample]:
    at = 0
    for segment in row.segments:
        begin, at = at, at + segment.tokens
        token_ids = row.token_ids[begin:at].tolist()
        logprobs = None
        if segment.source == "policy" and with_logprobs:
            # As float64, in which four digits stay four digits.
            logprobs = _rounded(row.logprobs[begin:at].astype(np.float64))
        text = _decode(setup, token_ids)
        yield SegmentSample(
            source=segment.source,
            tokens=segment.tokens,
            text=text,
            token_ids=tuple(token_ids),
            versions=tuple(VersionRun(*run) for run in segment.versions) or None,
            logprobs=logprobs,
            reward=segment.reward,
            token_lengths=token_lengths(text, token_ids, partial(_decode, setup), texts),
        )


def _decode(setup: RunSetup, token_ids: Sequence[int]) -> str:
    return str(setup.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def token_lengths(
    text: str, ids: Sequence[int], decode: Callable[[Sequence[int]], str], texts: dict[int, str]
) -> tuple[int, ...] | None:
    """The characters of a text that each of its tokens is; None where they cannot be told. `texts`
    caches the texts of single tokens.

    >>> words = {1: "2", 2: "+", 3: "2="}
    >>> token_lengths("2+2=", [1, 2, 3], lambda ids: "".join(words[i] for i in ids), {})
    (1, 1, 2)
    """
    for each in set(ids) - texts.keys():
        texts[each] = decode([each])
    pieces = [texts[each] for each in ids]
    if "".join(pieces) == text:
        return tuple(map(len, pieces))
    return _aligned(text, ids, decode, pieces)


def _aligned(
    text: str, ids: Sequence[int], decode: Callable[[Sequence[int]], str], pieces: Sequence[str]
) -> tuple[int, ...] | None:
    """The same where tokens do not stand for themselves: several bytes-level tokens can make one
    character, which is counted to the last of them, and some tokenizers drop the space with which
    a text begins."""
    lengths: list[int] = []
    at = 0
    while len(lengths) < len(ids):
        i = len(lengths)
        for piece, tokens in _candidates(ids, i, decode, pieces[i]):
            if text.startswith(piece, at):
                lengths += [0] * (tokens - 1) + [len(piece)]
                at += len(piece)
                break
        else:
            return None
    return tuple(lengths) if at == len(text) else None


def _candidates(
    ids: Sequence[int], i: int, decode: Callable[[Sequence[int]], str], piece: str
) -> Iterator[tuple[str, int]]:
    """Texts that a token, or a few from it on, may have here, with the number of tokens."""
    if UNKNOWN not in piece:
        yield piece, 1
        yield f" {piece}", 1
        return
    for tokens in range(2, MAX_JOINED + 1):
        if i + tokens <= len(ids):
            found = decode(ids[i : i + tokens])
            if UNKNOWN not in found:
                yield found, tokens
    yield piece, 1
