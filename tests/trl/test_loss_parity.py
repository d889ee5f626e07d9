"""Our losses against TRL's own code, where the two define the same thing: value and gradient.

TRL's `_compute_loss` runs on a real (tiny) model with a hand-made batch of ragged completions and
stored old log-probs; ours gets the same log-probs, advantages and masks. The differences of
convention that the mapping bridges are listed in docs/explanation/losses.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from scalerl.algorithm.aggregation import aggregation_weights
from scalerl.algorithm.batch import TokenBatch
from scalerl.algorithm.objective import objective
from scalerl.algorithm.options import Options, options_from_recipe
from scalerl.recipe import Recipe

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())

pytestmark = pytest.mark.trl

ROWS, PROMPT, LENGTH = 6, 4, 9

#: TRL's configuration -> ours.
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": (
        {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2},
        {"loss": "grpo", "constants": {"clip_low": 0.2, "clip_high": 0.2}, "aggregation": "sample"},
    ),
    "dapo": (
        {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
        {"loss": "dapo", "constants": {"clip_low": 0.2, "clip_high": 0.28}, "aggregation": "token"},
    ),
    "cispo: TRL's epsilon_high is our absolute cap": (
        {"loss_type": "cispo", "epsilon_high": 1.5},
        {"loss": "cispo", "constants": {"ratio_cap": 1.5}, "aggregation": "token"},
    ),
    "dr_grpo": (
        {"loss_type": "dr_grpo", "epsilon": 0.2, "epsilon_high": 0.2},
        {"loss": "dr-grpo", "constants": {}, "aggregation": "constant", "constant_length": LENGTH},
    ),
    "bnpo is GRPO's clip with a token average": (
        {"loss_type": "bnpo", "epsilon": 0.1, "epsilon_high": 0.1},
        {"loss": "grpo", "constants": {"clip_low": 0.1, "clip_high": 0.1}, "aggregation": "token"},
    ),
    "gspo is GRPO with a sequence-level ratio": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-3,
         "epsilon_high": 5e-3},
        {"loss": "gspo", "constants": {"clip_low": 3e-3, "clip_high": 5e-3},
         "aggregation": "sample"},
    ),
    "KL by k3": (
        {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2,
         "use_bias_correction_kl": False},
        {"loss": "grpo", "aggregation": "sample", "kl_coefficient": 0.05, "kl_estimator": "k3"},
    ),
}  # fmt: skip


def inputs(vocabulary: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Ragged completions, right-padded, one of them empty."""
    lengths = torch.tensor([9, 4, 1, 7, 0, 5])
    mask = (torch.arange(LENGTH)[None, :] < lengths[:, None]).long()
    return {
        "prompt_ids": torch.randint(3, vocabulary, (ROWS, PROMPT), generator=generator),
        "prompt_mask": torch.ones(ROWS, PROMPT, dtype=torch.long),
        "completion_ids": torch.randint(3, vocabulary, (ROWS, LENGTH), generator=generator),
        "completion_mask": mask,
        "advantages": torch.randn(ROWS, generator=generator),
        "num_items_in_batch": mask.sum(),
    }


def gradients(model: torch.nn.Module, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def flat_batch(given: dict[str, Tensor], options: Options) -> TokenBatch:
    """TRL's padded batch without its padding; every row is an episode of a prompt of its own."""
    mask_BT = given["completion_mask"].bool()
    row_N, number_N = mask_BT.nonzero().T
    every_N = torch.ones(len(row_N), dtype=torch.bool)
    batch = TokenBatch(
        ids_N=given["completion_ids"][mask_BT],
        position_N=PROMPT + number_N,
        row_N=row_N,
        written_N=every_N,
        in_loss_N=every_N,
        logprobs_N=given["old_per_token_logps"][mask_BT],
        versions_N=torch.zeros_like(row_N),
        turn_N=torch.zeros_like(row_N),
        advantages_N=given["advantages"][row_N],
        weights_N=torch.zeros(len(row_N)),
        parent_R=torch.full((ROWS,), -1),
        episode_R=torch.arange(ROWS),
        prompt_E=torch.arange(ROWS),
        reference_logprobs_N=given["ref_per_token_logps"][mask_BT],
    )
    weights_N = aggregation_weights(
        options.aggregation, batch, constant_length=options.constant_length
    )
    return replace(batch, weights_N=weights_N)


@pytest.mark.parametrize("name", SAME)
def test_loss_and_gradient_equal_trls(tmp_path: Path, name: str) -> None:
    theirs, ours = SAME[name]
    trainer = tiny.trainer(tmp_path, 1, max_completion_length=LENGTH, **theirs)
    trainer.beta = ours.get("kl_coefficient", 0.0)  # given at the start it would load a reference
    model = trainer.model.eval()  # TRL averages over accumulation windows in training only
    generator = torch.Generator().manual_seed(0)
    given = inputs(model.config.vocab_size, generator)

    def logprobs() -> Tensor:
        ids = torch.cat([given["prompt_ids"], given["completion_ids"]], dim=1)
        mask = torch.cat([given["prompt_mask"], given["completion_mask"]], dim=1)
        found = trainer._get_per_token_logps_and_entropies(model, ids, mask, LENGTH)
        return found[0]

    old = logprobs().detach()
    given["old_per_token_logps"] = old + 0.3 * torch.randn(old.shape, generator=generator)
    given["ref_per_token_logps"] = old + 0.2 * torch.randn(old.shape, generator=generator)

    expected = trainer._compute_loss(model, given)
    expected_gradient = gradients(model, expected)

    options = replace(SCALERL, **{"constants": {}} | ours)
    batch = flat_batch(given, options)
    mask_BT = given["completion_mask"].bool()
    found = objective(logprobs()[mask_BT], batch, options).loss
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    torch.testing.assert_close(gradients(model, found), expected_gradient, atol=1e-6, rtol=1e-4)
