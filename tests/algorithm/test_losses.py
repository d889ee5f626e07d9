"""Every loss x aggregation x normalisation against loops, values and gradients, in float64."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.algorithm.batch import MAX_LOG_RATIO, LossBatch
from scalerl.algorithm.losses import LOSSES, cispo, dapo, grpo, gspo, kl_term, reinforce
from scalerl.algorithm.objective import objective, prepare
from scalerl.algorithm.options import options_from_recipe
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.errors import InputError
from scalerl.recipe import Recipe

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())

CONSTANTS = {
    "cispo": {"ratio_cap": 1.5},
    "grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "dapo": {"clip_low": 0.2, "clip_high": 0.26},
    "dr-grpo": {"clip_low": 0.1, "clip_high": 0.1},
    "gspo": {"clip_low": 0.03, "clip_high": 0.05},
    "reinforce": {},
}
AGGREGATIONS = ["sample", "prompt", "token", "constant"]
NORMALISATIONS = ["batch", "prompt", "none"]


@st.composite
def ragged_batches(draw):
    """Prompts with groups of any size, rollouts of any length (0 too), forced tokens anywhere."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch = []
    for _ in range(draw(st.integers(1, 4))):
        group = []
        for _ in range(draw(st.integers(1, 4))):
            n = draw(st.integers(0, 5))
            gen = -rng.exponential(1.0, n)
            group.append(
                {
                    "reward": draw(st.sampled_from([-1.0, 1.0, 0.25])),
                    "gen": gen.astype(np.float32).astype(np.float64),
                    "train": gen + rng.normal(0, 0.4, n),
                    "forced": rng.random(n) < 0.2,
                }
            )
        batch.append(group)
    return batch


def as_groups(batch):
    groups = []
    for p, prompt in enumerate(batch):
        rollouts = tuple(
            Rollout(
                token_ids=np.arange(len(r["gen"])),
                logprobs=r["gen"].astype(np.float32),
                versions=np.zeros(len(r["gen"]), dtype=np.int64),
                forced=r["forced"],
                finish="stop",
                reward=r["reward"],
            )
            for r in prompt
        )
        groups.append(Group(f"p{p}", np.zeros(1, dtype=np.int64), rollouts))
    return groups


class Case:
    """A batch prepared by the code, with the same numbers at hand for the loops."""

    def __init__(self, batch, options):
        groups = as_groups(batch)
        self.options = options
        self.prepared = prepare(groups, options, dtype=torch.float64)
        self.source = {}
        for prompt, group in zip(batch, groups, strict=True):
            for r, rollout in zip(prompt, group.rollouts, strict=True):
                self.source[id(rollout)] = r
        shape = self.prepared.batch.mask_BT.shape
        self.logprobs_BT = torch.zeros(shape, dtype=torch.float64)
        for i, rollout in enumerate(self.prepared.rollouts):
            train = torch.from_numpy(self.source[id(rollout)]["train"])
            self.logprobs_BT[i, : len(train)] = train
        self.logprobs_BT.requires_grad_(True)


def by_loops(batch, **options):
    """Value and gradients (list per rollout) from the reference."""
    leaves = []
    copy = []
    for prompt in batch:
        group = []
        for r in prompt:
            train = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in r["train"]]
            leaves.append((r, train))
            group.append(r | {"train": train})
        copy.append(group)
    value = reference.objective(copy, **options)
    if value.requires_grad:
        value.backward()
    gradients = {
        id(r): [0.0 if t.grad is None else float(t.grad) for t in train] for r, train in leaves
    }
    return float(value), gradients


@pytest.mark.parametrize(
    ("loss", "aggregation", "normalisation"),
    list(itertools.product(CONSTANTS, AGGREGATIONS, NORMALISATIONS)),
)
@settings(max_examples=12, deadline=None)
@given(batch=ragged_batches(), drop=st.booleans(), population=st.sampled_from(["kept", "all"]),
       ddof=st.integers(0, 1))  # fmt: skip
def test_equals_the_loops(loss, aggregation, normalisation, batch, drop, population, ddof):
    options = replace(
        SCALERL,
        loss=loss,
        constants=CONSTANTS[loss],
        aggregation=aggregation,
        constant_length=7.0,
        normalisation=normalisation,
        population=population,
        ddof=ddof,
        zero_variance="drop" if drop else "keep",
    )
    case = Case(batch, options)
    ours = objective(case.logprobs_BT, case.prepared.batch, options).loss
    ours.backward()
    value, gradients = by_loops(
        batch,
        loss=loss,
        constants=CONSTANTS[loss],
        aggregation=aggregation,
        normalisation=normalisation,
        population=population,
        ddof=ddof,
        drop=drop,
    )
    assert ours.item() == pytest.approx(value, abs=1e-10, rel=1e-10)
    for i, rollout in enumerate(case.prepared.rollouts):
        expected = gradients[id(case.source[id(rollout)])]
        found = case.logprobs_BT.grad[i, : len(expected)]
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize(("loss", "aggregation"), list(itertools.product(CONSTANTS, AGGREGATIONS)))
@settings(max_examples=8, deadline=None)
@given(batch=ragged_batches(), seed=st.integers(0, 1000))
def test_micro_batches_add_up_to_the_whole(loss, aggregation, batch, seed):
    options = replace(SCALERL, loss=loss, constants=CONSTANTS[loss], aggregation=aggregation,
                      constant_length=7.0, zero_variance="keep")  # fmt: skip
    case = Case(batch, options)
    whole = objective(case.logprobs_BT, case.prepared.batch, options).loss
    whole.backward()
    gradient = case.logprobs_BT.grad.clone()
    case.logprobs_BT.grad = None
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(case.prepared.batch)))
    total = 0.0
    for rows in torch.tensor_split(order, 3):
        part = objective(case.logprobs_BT[rows], case.prepared.batch.rows(rows), options).loss
        part.backward()
        total += part.item()
    assert total == pytest.approx(whole.item(), abs=1e-12)
    torch.testing.assert_close(case.logprobs_BT.grad, gradient, atol=1e-14, rtol=1e-12)


def simple(train, gen, advantage=1.0, mask=None):
    """One row."""
    train_BT = torch.tensor([train], dtype=torch.float64, requires_grad=True)
    n = len(train)
    mask_BT = torch.tensor([mask if mask is not None else [True] * n])
    batch = LossBatch(
        generator_logprobs_BT=torch.tensor([gen], dtype=torch.float64),
        advantages_B=torch.tensor([advantage], dtype=torch.float64),
        mask_BT=mask_BT,
        weights_BT=mask_BT.double() / max(n, 1),
        prompt_B=torch.zeros(1, dtype=torch.long),
        versions_BT=torch.zeros(1, n, dtype=torch.long),
    )
    return train_BT, batch


def test_cispo_cap_is_absolute_and_one_sided():
    """rho = 6, 4 and 0.1 with a cap of 5: weights 5, 4 and 0.1, not 1 + 5."""
    train, batch = simple(list(np.log([0.6, 0.4, 0.01])), list(np.log([0.1, 0.1, 0.1])))
    found = cispo(train, batch, ratio_cap=5.0)
    found.loss_BT.sum().backward()
    assert train.grad[0].tolist() == pytest.approx([-5.0, -4.0, -0.1])
    assert found.truncated_BT[0].tolist() == [True, False, False]


def test_cispo_keeps_the_gradient_of_truncated_tokens_and_dapo_does_not():
    train, batch = simple([np.log(0.9)], [np.log(0.1)])
    cispo(train, batch, ratio_cap=2.0).loss_BT.sum().backward()
    assert float(train.grad) == pytest.approx(-2.0)
    train.grad = None
    dapo(train, batch).loss_BT.sum().backward()
    assert float(train.grad) == 0.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "has_gradient"),
    [(1.5, 1.0, False), (1.5, -1.0, True), (0.5, 1.0, True), (0.5, -1.0, False), (1.1, 1.0, True)],
)
def test_clip_takes_the_gradient_only_from_the_side_that_went_too_far(
    ratio, advantage, has_gradient
):
    train, batch = simple([np.log(0.4 * ratio)], [np.log(0.4)], advantage)
    found = grpo(train, batch)
    found.loss_BT.sum().backward()
    assert (float(train.grad) != 0.0) == has_gradient
    assert bool(found.truncated_BT) == (not has_gradient)


def test_grpo_refuses_an_asymmetric_clip():
    with pytest.raises(InputError, match="symmetrically"):
        grpo(*simple([0.0], [0.0]), clip_low=0.2, clip_high=0.3)


def test_gspo_ratio_is_the_geometric_mean():
    train, batch = simple([np.log(0.2), np.log(0.9)], [np.log(0.1), np.log(0.3)])
    found = gspo(train, batch, clip_low=10.0, clip_high=10.0)
    assert found.ratio_BT[0].tolist() == pytest.approx([np.sqrt(6.0)] * 2)


def test_reinforce_with_a_cap_is_cispo_and_without_ignores_the_ratio():
    train, batch = simple([-1.0, -2.0], [-3.0, -2.0], 0.5)
    torch.testing.assert_close(
        reinforce(train, batch, ratio_cap=3.0).loss_BT, cispo(train, batch, ratio_cap=3.0).loss_BT
    )
    assert reinforce(train, batch).loss_BT[0].tolist() == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize("loss", sorted(CONSTANTS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("side", ["train", "gen"])
def test_a_log_prob_that_is_not_finite_is_left_out_and_leaves_no_nan(loss, bad, side):
    train, gen = [-1.0, -0.5, -2.0], [-1.1, -0.6, -1.9]
    (train if side == "train" else gen)[1] = bad
    train_BT, batch = simple(train, gen)
    found = LOSSES[loss](train_BT, batch, **CONSTANTS[loss])
    (batch.weights_BT * found.loss_BT).sum().backward()
    assert torch.isfinite(found.loss_BT).all() and torch.isfinite(train_BT.grad).all()
    assert float(found.loss_BT[0, 1]) == 0.0
    assert found.usable_BT[0].tolist() == [True, False, True]


@pytest.mark.parametrize("loss", sorted(CONSTANTS))
@pytest.mark.parametrize("gap", [1e3, -1e3])
def test_absurd_ratios_stay_finite(loss, gap):
    train_BT, batch = simple([-1.0], [-1.0 - gap])
    found = LOSSES[loss](train_BT.float().detach().requires_grad_(True), batch, **CONSTANTS[loss])
    assert torch.isfinite(found.loss_BT).all()
    assert float(found.ratio_BT.max()) <= np.exp(MAX_LOG_RATIO) * 1.001


@pytest.mark.parametrize("loss", sorted(CONSTANTS))
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 4)])
def test_an_empty_or_fully_masked_part_gives_zero_with_a_graph(loss, shape):
    logprobs_BT = torch.full(shape, float("nan"), requires_grad=True)
    batch = LossBatch(
        generator_logprobs_BT=torch.zeros(shape),
        advantages_B=torch.ones(shape[0]),
        mask_BT=torch.zeros(shape, dtype=torch.bool),
        weights_BT=torch.zeros(shape),
        prompt_B=torch.zeros(shape[0], dtype=torch.long),
        versions_BT=torch.zeros(shape, dtype=torch.long),
    )
    options = replace(SCALERL, loss=loss, constants=CONSTANTS[loss])
    result = objective(logprobs_BT, batch, options).loss
    assert float(result) == 0.0
    result.backward()
    assert torch.isfinite(logprobs_BT.grad).all()


def test_kl_estimators():
    train, batch = simple([np.log(0.5)], [np.log(0.5)])
    batch = LossBatch(**{f: getattr(batch, f) for f in batch.__dataclass_fields__}
                      | {"reference_logprobs_BT": torch.tensor([[np.log(0.25)]])})  # fmt: skip
    gap = np.log(0.25) - np.log(0.5)
    assert float(kl_term(train, batch, "k1")) == pytest.approx(-gap)
    assert float(kl_term(train, batch, "k2")) == pytest.approx(gap**2 / 2)
    assert float(kl_term(train, batch, "k3")) == pytest.approx(np.exp(gap) - 1 - gap)
    with pytest.raises(InputError, match="k1, k2, k3"):
        kl_term(train, batch, "k4")


def test_kl_term_needs_a_reference_and_enters_the_loss():
    train, batch = simple([-0.7], [-0.7])
    with pytest.raises(InputError, match="reference"):
        objective(train, batch, replace(SCALERL, kl_coefficient=0.1))
    batch = LossBatch(**{f: getattr(batch, f) for f in batch.__dataclass_fields__}
                      | {"reference_logprobs_BT": torch.tensor([[-1.7]])})  # fmt: skip
    plain = objective(train, batch, SCALERL).loss
    with_kl = objective(train, batch, replace(SCALERL, kl_coefficient=0.1))
    assert float(with_kl.loss - plain) == pytest.approx(0.1 * with_kl.kl)


def test_losses_are_found_by_name_path_and_decorator(monkeypatch):
    assert LOSSES["cispo"] is cispo
    assert LOSSES["scalerl.algorithm.losses.dapo:dapo"] is dapo
    with pytest.raises(InputError, match="did you mean 'cispo'"):
        LOSSES["cipso"]
    with pytest.raises(InputError, match="cannot be imported"):
        LOSSES["no.such.module:loss"]

    monkeypatch.setattr(LOSSES, "_found", dict(LOSSES._found))

    @LOSSES.register("test-only")
    def mine(logprobs_BT, batch):
        return cispo(logprobs_BT, batch)

    train, batch = simple([-1.0], [-1.0])
    assert float(
        objective(train, batch, replace(SCALERL, loss="test-only", constants={})).loss
    ) == pytest.approx(1.0)
    with pytest.raises(InputError, match="already"):
        LOSSES.register("test-only")(cispo)
