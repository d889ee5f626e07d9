"""The losses, by the names recipes use. Each takes the trainer's log-probs and a TokenBatch, and
gives the loss of every token before aggregation; lower is better.

>>> sorted(LOSSES)
['cispo', 'dapo', 'dr-grpo', 'grpo', 'gspo', 'reinforce', 'sequence-tis']
"""

from scalerl.algorithm.losses.cispo import cispo
from scalerl.algorithm.losses.dapo import dapo
from scalerl.algorithm.losses.dr_grpo import dr_grpo
from scalerl.algorithm.losses.grpo import grpo
from scalerl.algorithm.losses.gspo import gspo
from scalerl.algorithm.losses.kl import KL_ESTIMATORS, kl_term
from scalerl.algorithm.losses.registry import LOSSES, Loss
from scalerl.algorithm.losses.reinforce import reinforce
from scalerl.algorithm.losses.sequence_tis import sequence_tis

__all__ = [
    "KL_ESTIMATORS",
    "LOSSES",
    "Loss",
    "cispo",
    "dapo",
    "dr_grpo",
    "grpo",
    "gspo",
    "kl_term",
    "reinforce",
    "sequence_tis",
]
