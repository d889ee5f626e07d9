"""Every loss x aggregation x normalisation against loops, values and gradients, in float64."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import reference
import torch
from flat import token_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.algorithm.batch import MAX_LOG_RATIO
from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.losses import (
    LOSSES,
    cispo,
    dapo,
    grpo,
    gspo,
    kl_term,
    reinforce,
    sequence_tis,
)
from scalerl.algorithm.objective import objective, prepare
from scalerl.algorithm.options import options_from_recipe
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
    "sequence-tis": {"ratio_cap": 1.3, "ratio": "product"},
}
AGGREGATIONS = ["sample", "prompt", "token", "constant"]
NORMALISATIONS = ["batch", "prompt", "none"]


@st.composite
def ragged_batches(draw):
    """Prompts with groups of any size, episodes of any length (0 too), forced tokens anywhere."""
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
    def episode(r):
        turn = Turn.from_lists(range(len(r["gen"])), logprobs=r["gen"], forced=r["forced"])
        return Episode.from_turn([0], turn).with_reward(r["reward"], None)

    return [Group(f"p{p}", tuple(map(episode, prompt))) for p, prompt in enumerate(batch)]


class Case:
    """A batch prepared by the code, with the same numbers at hand for the loops."""

    def __init__(self, batch, options):
        groups = as_groups(batch)
        self.prepared = prepare(groups, options, dtype=torch.float64)
        given = {id(e): r for prompt, group in zip(batch, groups, strict=True)
                 for r, e in zip(prompt, group.episodes, strict=True)}  # fmt: skip
        #: What the kept episodes were made from, in order.
        self.kept = [given[id(e)] for e in self.prepared.episodes]
        self.written_N = self.prepared.batch.written_N
        self.logprobs_N = torch.zeros(len(self.written_N), dtype=torch.float64)
        if self.kept:
            train = np.concatenate([r["train"] for r in self.kept])
            self.logprobs_N[self.written_N] = torch.from_numpy(train)
        self.logprobs_N.requires_grad_(True)


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
    ours = objective(case.logprobs_N, case.prepared.batch, options).loss
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
    expected = [g for r in case.kept for g in gradients[id(r)]]
    found = case.logprobs_N.grad[case.written_N]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-10, rtol=1e-9)
    assert not case.logprobs_N.grad[~case.written_N].any()


@pytest.mark.parametrize(("loss", "aggregation"), list(itertools.product(CONSTANTS, AGGREGATIONS)))
@settings(max_examples=8, deadline=None)
@given(batch=ragged_batches(), seed=st.integers(0, 1000))
def test_micro_batches_add_up_to_the_whole(loss, aggregation, batch, seed):
    options = replace(SCALERL, loss=loss, constants=CONSTANTS[loss], aggregation=aggregation,
                      constant_length=7.0, zero_variance="keep")  # fmt: skip
    case = Case(batch, options)
    whole = objective(case.logprobs_N, case.prepared.batch, options).loss
    whole.backward()
    gradient = case.logprobs_N.grad.clone()
    case.logprobs_N.grad = None
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(case.prepared.batch))
    total = 0.0
    for episodes in np.array_split(order, 3):
        taken, at_N = case.prepared.batch.take(np.sort(episodes))
        part = objective(case.logprobs_N[at_N], taken, options).loss
        part.backward()
        total += part.item()
    assert total == pytest.approx(whole.item(), abs=1e-12)
    torch.testing.assert_close(case.logprobs_N.grad, gradient, atol=1e-14, rtol=1e-12)


def simple(train, gen, advantage=1.0, **given):
    """One episode."""
    train_N = torch.tensor(train, dtype=torch.float64, requires_grad=True)
    return train_N, token_batch([len(train)], gen, [advantage], **given)


def test_cispo_cap_is_absolute_and_one_sided():
    """rho = 6, 4 and 0.1 with a cap of 5: weights 5, 4 and 0.1, not 1 + 5."""
    train, batch = simple(list(np.log([0.6, 0.4, 0.01])), list(np.log([0.1, 0.1, 0.1])))
    found = cispo(train, batch, ratio_cap=5.0)
    found.loss_N.sum().backward()
    assert train.grad.tolist() == pytest.approx([-5.0, -4.0, -0.1])
    assert found.truncated_N.tolist() == [True, False, False]


def test_cispo_keeps_the_gradient_of_truncated_tokens_and_dapo_does_not():
    train, batch = simple([np.log(0.9)], [np.log(0.1)])
    cispo(train, batch, ratio_cap=2.0).loss_N.sum().backward()
    assert float(train.grad) == pytest.approx(-2.0)
    train.grad = None
    dapo(train, batch).loss_N.sum().backward()
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
    found.loss_N.sum().backward()
    assert (float(train.grad) != 0.0) == has_gradient
    assert bool(found.truncated_N) == (not has_gradient)


def test_grpo_refuses_an_asymmetric_clip():
    with pytest.raises(InputError, match="symmetrically"):
        grpo(*simple([0.0], [0.0]), clip_low=0.2, clip_high=0.3)


@pytest.mark.parametrize(("ratio", "weight"), [("product", 3.0), ("mean", 2.0)])
def test_a_sequence_ratio_is_capped_and_every_token_keeps_its_gradient(ratio, weight):
    """Two tokens with rho = 4 and 1: a product of 4, cut to 3, or a mean of 2."""
    train, batch = simple(list(np.log([0.4, 0.1])), list(np.log([0.1, 0.1])))
    found = sequence_tis(train, batch, ratio_cap=3.0, ratio=ratio)
    found.loss_N.sum().backward()
    assert train.grad.tolist() == pytest.approx([-weight, -weight])
    assert found.truncated_N.tolist() == [ratio == "product"] * 2


def test_gspo_ratio_is_the_geometric_mean():
    train, batch = simple([np.log(0.2), np.log(0.9)], [np.log(0.1), np.log(0.3)])
    found = gspo(train, batch, clip_low=10.0, clip_high=10.0)
    assert found.ratio_N.tolist() == pytest.approx([np.sqrt(6.0)] * 2)


def test_gspo_takes_each_episode_for_itself_and_each_token_its_own_advantage():
    train = torch.tensor([-1.0, -2.0, -1.0], dtype=torch.float64)
    batch = token_batch([2, 1], [-2.0, -3.0, -0.5], [1.0, -1.0])
    batch = replace(batch, advantages_N=torch.tensor([1.0, 3.0, -1.0], dtype=torch.float64))
    found = gspo(train, batch, clip_low=10.0, clip_high=10.0)
    assert found.ratio_N.tolist() == pytest.approx([np.e, np.e, np.exp(-0.5)])
    assert found.loss_N.tolist() == pytest.approx([-np.e, -3 * np.e, np.exp(-0.5)])


def test_reinforce_with_a_cap_is_cispo_and_without_ignores_the_ratio():
    train, batch = simple([-1.0, -2.0], [-3.0, -2.0], 0.5)
    torch.testing.assert_close(
        reinforce(train, batch, ratio_cap=3.0).loss_N, cispo(train, batch, ratio_cap=3.0).loss_N
    )
    assert reinforce(train, batch).loss_N.tolist() == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize("loss", sorted(CONSTANTS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("side", ["train", "gen"])
def test_a_log_prob_that_is_not_finite_is_left_out_and_leaves_no_nan(loss, bad, side):
    train, gen = [-1.0, -0.5, -2.0], [-1.1, -0.6, -1.9]
    (train if side == "train" else gen)[1] = bad
    train_N, batch = simple(train, gen)
    found = LOSSES[loss](train_N, batch, **CONSTANTS[loss])
    (batch.weights_N * found.loss_N).sum().backward()
    assert torch.isfinite(found.loss_N).all() and torch.isfinite(train_N.grad).all()
    assert float(found.loss_N[1]) == 0.0
    assert found.usable_N.tolist() == [True, False, True]


@pytest.mark.parametrize("loss", sorted(CONSTANTS))
@pytest.mark.parametrize("gap", [1e3, -1e3])
def test_absurd_ratios_stay_finite(loss, gap):
    train_N, batch = simple([-1.0], [-1.0 - gap])
    found = LOSSES[loss](train_N.float().detach().requires_grad_(True), batch, **CONSTANTS[loss])
    assert torch.isfinite(found.loss_N).all()
    assert float(found.ratio_N.max()) <= np.exp(MAX_LOG_RATIO) * 1.001


@pytest.mark.parametrize("loss", sorted(CONSTANTS))
@pytest.mark.parametrize("lengths", [[], [0, 0, 0], [4, 4]])
def test_an_empty_or_fully_masked_part_gives_zero_with_a_graph(loss, lengths):
    n = sum(lengths)
    logprobs_N = torch.full((n,), float("nan"), requires_grad=True)
    batch = token_batch(lengths, [0.0] * n, [1.0] * len(lengths), in_loss=[False] * n)
    options = replace(SCALERL, loss=loss, constants=CONSTANTS[loss])
    result = objective(logprobs_N, batch, options).loss
    assert float(result) == 0.0
    result.backward()
    assert torch.isfinite(logprobs_N.grad).all()


def test_kl_estimators():
    train, batch = simple([np.log(0.5)], [np.log(0.5)], reference=[np.log(0.25)])
    gap = np.log(0.25) - np.log(0.5)
    assert float(kl_term(train, batch, "k1")) == pytest.approx(-gap)
    assert float(kl_term(train, batch, "k2")) == pytest.approx(gap**2 / 2)
    assert float(kl_term(train, batch, "k3")) == pytest.approx(np.exp(gap) - 1 - gap)
    assert float(kl_term(train, batch, "scalerl.algorithm.losses.kl:k2")) > 0
    with pytest.raises(InputError, match="no KL estimator 'k4'"):
        kl_term(train, batch, "k4")


def test_kl_term_needs_a_reference_and_enters_the_loss():
    train, batch = simple([-0.7], [-0.7])
    with pytest.raises(InputError, match="reference"):
        objective(train, batch, replace(SCALERL, kl_coefficient=0.1))
    train, batch = simple([-0.7], [-0.7], reference=[-1.7])
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
    def mine(logprobs_N, batch):
        return cispo(logprobs_N, batch)

    train, batch = simple([-1.0], [-1.0])
    assert float(
        objective(train, batch, replace(SCALERL, loss="test-only", constants={})).loss
    ) == pytest.approx(1.0)
    with pytest.raises(InputError, match="already"):
        LOSSES.register("test-only")(cispo)
