"""Names of metrics that fall as a model gets better: losses and error rates.

The law describes a score that rises. A loss has no upper bound, so that no score follows from it:
it is refused. An error rate lies in [0, 1], and 1 minus it is a score.
"""

from __future__ import annotations

import re
from typing import Literal

from scalerl.runs import metrics

#: Unbounded: no score follows from these.
_LOSSES = frozenset(
    {"loss", "losses", "nll", "perplexity", "ppl", "crossentropy", "xent", "bpb", "bpc", "mse",
     "mae", "rmse"}
)  # fmt: skip
_LOSS_PHRASES = re.compile(r"cross entropy|negative log likelihood|bits per (?:byte|character)")
#: Shares of something wrong: 1 minus one is a score.
_ERROR_RATES = frozenset(
    {"error", "errors", "err", "wer", "cer", "misclassification", "failure", "failures", "failed",
     "incorrect", "wrong"}
)  # fmt: skip
#: `evalLoss`, `valError`: where a word begins inside a name.
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")

Direction = Literal["score", "loss", "error"]


def direction(name: str) -> Direction:
    """Whether a metric of this name is a score, a loss, or an error rate.

    >>> [direction(n) for n in ("eval_loss", "val/wer", "evalError", "val_acc", "lossless_acc")]
    ['loss', 'error', 'error', 'score', 'score']
    """
    if metrics.is_about_being_right(name):
        return "score"
    words = [w for w in re.split(r"[^a-z0-9]+", _CAMEL.sub(" ", name).lower()) if w]
    if _LOSSES & set(words) or _LOSS_PHRASES.search(" ".join(words)):
        return "loss"
    # A standard error says how sure a score is.
    return "error" if _ERROR_RATES & set(words) and "std" not in words else "score"
