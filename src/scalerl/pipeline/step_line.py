"""The line of a step in steps.jsonl, from the trainer's report and the batch.

The only place that fills a `StepLine`; what each field means is said there (`runs/lines.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalerl.algorithm.diagnostics import Diagnostics
from scalerl.algorithm.episode import Group
from scalerl.pipeline import messages as m
from scalerl.pipeline.environment_pool import commonest
from scalerl.pipeline.groups import CheckSummary
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.transcripts import play_of
from scalerl.runs.lines import (
    Clipping,
    FilterCounts,
    GroupSeconds,
    Lengths,
    LogprobGap,
    Play,
    Ratio,
    Staleness,
    StepLine,
)

#: Bins of a histogram of lengths, for each doubling of the length.
BINS = 4


def _lengths(groups: Sequence[Sequence[int]]) -> Lengths:
    """The lengths of a batch, given for each prompt.

    >>> found = _lengths([[10, 12], [30, 32]])
    >>> found.mean, round(found.alike, 2), found.histogram
    (21.0, 0.99, {9: 1, 11: 1, 26: 1, 32: 1})
    """
    # One row a prompt, so that all is computed at once: a batch may have thousands.
    lengths_PG = np.asarray(groups, np.float64)
    between, within = lengths_PG.mean(axis=1).var(), lengths_PG.var(axis=1).mean()
    variance = float(between + within)
    powers, counts = np.unique(
        np.floor(BINS * np.log2(np.maximum(lengths_PG, 1.0)) + 1e-9), return_counts=True
    )
    return Lengths(
        float(lengths_PG.mean()),
        int(lengths_PG.max()),
        sd=variance**0.5,
        alike=float(between) / variance if variance else None,
        histogram={int(2 ** (p / BINS)): int(n) for p, n in zip(powers, counts, strict=True)},
    )


def _clipping(found: Diagnostics) -> Clipping | None:
    tokens, truncated = found.tokens_by_probability, found.truncated_by_probability
    if not tokens:
        return None
    return Clipping(tokens, tuple(c / max(n, 1) for n, c in zip(tokens, truncated, strict=True)))


def gradient_chance(groups: Sequence[Sequence[bool | None]]) -> float | None:
    """The expected share of prompts with both right and wrong rollouts, 1 - p^n - (1-p)^n, given
    for each prompt whether its rollouts are right (None: not scored).

    >>> gradient_chance([[True, False], [True, True, None]])
    0.25
    """
    scored = [[right for right in group if right is not None] for group in groups]
    sizes = np.array([len(rights) for rights in scored if rights])
    if not len(sizes):
        return None
    p = np.array([np.mean(rights) for rights in scored if rights])
    return float(np.mean(1 - p**sizes - (1 - p) ** sizes))


def step_line(
    done: m.StepDone, batch: Sequence[Group], summary: CheckSummary, stages: GroupSeconds | None,
    retired: int, ledger: Ledger,
) -> StepLine:  # fmt: skip
    """The line of the step that `done` reports; `ledger` is the state after it."""
    report = done.report
    episodes = [e for g in batch for e in g.episodes]
    rewards = [e.reward for e in episodes if e.reward is not None]
    solved = [[bool(e.correct) for e in g.episodes] for g in batch]
    mixed = [e.versions is not None and e.versions[0] != e.versions[1] for e in episodes]
    d = report.diagnostics
    return StepLine(
        step=report.version,
        loss=report.loss,
        grad_norm=report.grad_norm,
        lr=report.lr,
        forward_tokens=report.forward_tokens,
        loss_tokens=report.loss_tokens,
        micro_batches=report.micro_batches,
        seconds=report.seconds,
        tokens=d.tokens,
        ratio=Ratio(d.ratio_mean, d.ratio_max, d.ratio_min, d.ratio_truncated),
        ess=d.ess,
        logprob_gap=LogprobGap(d.gap_mean, d.gap_max, d.kl_gen_train),
        non_finite=d.non_finite,
        entropy=d.entropy,
        staleness=Staleness(
            d.staleness_mean,
            d.staleness_max,
            d.staleness_histogram,
            gap={age: gap.mean for age, gap in d.gap_by_staleness.items()} or None,
            kl={age: gap.kl for age, gap in d.gap_by_staleness.items()} or None,
        ),
        kl=report.kl,
        metrics=dict(report.metrics) | {n: float(np.mean(v)) for n, v in summary.metrics.items()},
        reward=float(np.mean(rewards)) if rewards else None,
        # An answer without a score counts as wrong here, unlike in a validation.
        pass_rate=float(np.mean([bool(e.correct) for e in episodes])),
        truncated=float(np.mean([e.truncated for e in episodes])),
        interrupted=float(np.mean([e.finish == "interrupted" for e in episodes])),
        mixed_versions=float(np.mean(mixed)),
        prompts=tuple(g.prompt_id for g in batch),
        zero_variance=report.filtered.zero_variance_prompts / len(batch),
        length=_lengths([[len(e) for e in g.episodes] for g in batch]),
        context_tokens=report.context_tokens,
        publish_seconds=done.publish_seconds,
        always_solved=float(np.mean([all(each) for each in solved])),
        never_solved=float(np.mean([not any(each) for each in solved])),
        group_seconds=stages,
        filtered=FilterCounts(**report.filtered.to_dict()),
        retired=retired,
        clipping=_clipping(d),
        far_gradient=d.far_gradient,
        gradient_chance=gradient_chance([[e.correct for e in g.episodes] for g in batch]),
        compute=ledger.compute(),
        ledger=ledger.to_line(),
        unscored_why=commonest(summary.unscored) or None,
        play=Play.from_episodes((play_of(e), e.finish) for e in episodes),
    )
