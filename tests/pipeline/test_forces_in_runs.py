"""Forces in whole runs of the real tiny model, on a virtual clock."""

import pytest

from scalerl.pipeline.setup import RunSetup
from scalerl.pipeline.step_line import gradient_chance
from scalerl.placement.inline import InlineCrew
from scalerl.placement.world import World
from scalerl.recipe import Recipe
from scalerl.runs.lines import EvalLine, StepLine
from scalerl.runs.listener import Listener
from scalerl.runs.store import RunStore
from scalerl.training import RunAttempts

SMALL = ["placement.backend=inline", "batch.prompts=4", "batch.generations=8", "schedule.k=2",
         "validation.prompts=15", "validation.k=1", "validation.every=2", "budget.steps=4",
         "validation.also_temperatures=[]", "optimiser.lr=1e-3", "optimiser.warmup_steps=1",
         "filter.zero_variance=keep"]  # fmt: skip


def made(out, *overrides):
    """The steps and validations of a run."""

    def begin(recipe, checkpoint):
        setup = RunSetup.from_recipe(recipe)
        crew = InlineCrew(setup, checkpoint, World())
        return setup, crew, crew.clock

    store = RunStore(out)
    recipe = Recipe.load("scalerl", "tiny", overrides=[*SMALL, *overrides])
    RunAttempts(recipe, store, None, Listener(), False, begin).run()
    return store.read(StepLine), store.read(EvalLine)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    return made(tmp_path_factory.mktemp("noisy") / "run", "forces.sampler_noise=0.3")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return made(tmp_path_factory.mktemp("plain") / "run")


def learnt(steps):
    return [(s.loss, s.grad_norm, s.logprob_gap, s.clipping, s.far_gradient) for s in steps]


def test_a_run_with_noise_repeats_bit_for_bit(noisy, tmp_path):
    again, _ = made(tmp_path / "run", "forces.sampler_noise=0.3")
    assert learnt(again) == learnt(noisy[0])


def test_noise_is_a_mismatch_of_fresh_tokens_and_validation_has_none(noisy, plain):
    first, reference = noisy[0][0], plain[0][0]
    assert first.staleness.max == 0 and reference.logprob_gap.mean < 1e-5
    assert first.logprob_gap.mean > 0.01 and first.staleness.gap[0] == first.logprob_gap.mean
    assert noisy[1][0].pass_rate == plain[1][0].pass_rate


def test_counters_of_a_step_agree_with_its_other_columns(noisy):
    for line in noisy[0]:
        assert sum(line.clipping.tokens) == line.tokens
        capped = [n * share for n, share in zip(*line_of(line.clipping), strict=True)]
        assert sum(capped) == pytest.approx(line.ratio.truncated * line.tokens, abs=1e-6)
        ages = line.staleness.histogram
        assert line.staleness.gap.keys() == line.staleness.kl.keys() == ages.keys()
        mean = sum(ages[age] * gap for age, gap in line.staleness.gap.items()) / line.tokens
        assert mean == pytest.approx(line.logprob_gap.mean)
        assert line.far_gradient is None or 0 <= line.far_gradient <= 1
        assert 0 <= line.gradient_chance <= 1 - line.zero_variance + 1e-9
    assert any(line.far_gradient for line in noisy[0])


def line_of(clipping):
    return clipping.tokens, clipping.truncated


def test_prompts_that_all_or_none_answer_have_no_chance_of_a_gradient():
    assert gradient_chance([[True] * 4, [False] * 4]) == 0
    assert gradient_chance([[True, False] * 4]) == pytest.approx(1 - 2 * 0.5**8)
    assert gradient_chance([[None]]) is None
