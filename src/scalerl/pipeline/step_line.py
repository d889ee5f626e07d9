"""The line of a step in steps.jsonl, from the trainer's report and the batch.

The only place that fills a `StepLine`; what each field means is said there (`runs/lines.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scalerl.algorithm.rollout import Group
from scalerl.pipeline.environment_pool import commonest
from scalerl.pipeline.groups import CheckSummary
from scalerl.pipeline.ledger import Ledger
from scalerl.runs.lines import FilterCounts, Lengths, LogprobGap, Ratio, Staleness, StepLine
from scalerl.trainer.interface import StepReport


def step_line(
    report: StepReport, batch: Sequence[Group], summary: CheckSummary, retired: int, ledger: Ledger
) -> StepLine:
    """The line of the step that `report` is about; `ledger` is the state after it."""
    rollouts = [r for g in batch for r in g.rollouts]
    rewards = [r.reward for r in rollouts if r.reward is not None]
    lengths = [len(r) for r in rollouts]
    mixed = [len(r) > 0 and r.versions[0] != r.versions[-1] for r in rollouts]
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
        staleness=Staleness(d.staleness_mean, d.staleness_max, d.staleness_histogram),
        kl=report.kl,
        metrics=dict(report.metrics) | {n: float(np.mean(v)) for n, v in summary.metrics.items()},
        reward=float(np.mean(rewards)) if rewards else None,
        # An answer without a score counts as wrong here, unlike in a validation.
        pass_rate=float(np.mean([bool(r.correct) for r in rollouts])),
        truncated=float(np.mean([r.truncated for r in rollouts])),
        interrupted=float(np.mean([r.finish == "interrupted" for r in rollouts])),
        mixed_versions=float(np.mean(mixed)),
        prompts=tuple(g.prompt_id for g in batch),
        zero_variance=report.filtered.zero_variance_prompts / len(batch),
        length=Lengths(float(np.mean(lengths)), int(max(lengths))),
        filtered=FilterCounts(**report.filtered.to_dict()),
        retired=retired,
        compute=ledger.compute(),
        ledger=ledger.to_line(),
        unscored_why=commonest(summary.unscored) or None,
    )
