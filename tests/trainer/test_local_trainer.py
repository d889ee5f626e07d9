"""The local trainer: exact log-probs, micro-batches that change nothing, refusal, resume."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig

from scalerl.algorithm.episode import Episode, Group, TokenRow, Turn
from scalerl.algorithm.objective import objective, prepare
from scalerl.algorithm.options import options_from_recipe
from scalerl.errors import InputError
from scalerl.models.load import model_path
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.interface import NonFiniteGradient, TrainerSpec
from scalerl.trainer.local import LocalTrainer
from scalerl.trainer.registry import TRAINERS

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())
#: What a trainer is made with, where a test says nothing else.
TRAINER = {"head_precision": "fp32", "temperature": 1.0, "token_budget": 8192}

VOCABULARY = 30
CONFIGS = {
    "llama": LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64,
                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                       embd_pdrop=0.0, attn_pdrop=0.0),
    "mixtral": MixtralConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48,
                             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                             num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
}  # fmt: skip


def model_of(name="llama", seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(CONFIGS[name])


def batch(seed=0, prompts=3, generations=4):
    """Groups with ragged episodes whose reward is the share of token 7."""
    rng = np.random.default_rng(seed)
    groups = []
    for p in range(prompts):
        turns, rewards = [], []
        for _ in range(generations):
            n = int(rng.integers(1, 12))
            ids = rng.integers(0, VOCABULARY, n)
            turns.append(Turn.from_lists(ids, logprobs=np.full(n, -np.log(VOCABULARY))))
            rewards.append((1.0 if 7 in ids else -1.0) + 0.01 * float(rng.standard_normal()))
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 6)))
        episodes = [Episode.from_turn(prompt, turn).with_reward(reward, None)
                    for turn, reward in zip(turns, rewards, strict=True)]  # fmt: skip
        groups.append(Group(f"p{p}", tuple(episodes)))
    return groups


def trainer(name="llama", options=None, **changes):
    fast = OptimiserSection(lr=1e-2, warmup_steps=1, eps=1e-8)
    return LocalTrainer(model_of(name), options or SCALERL, fast, **TRAINER | changes)


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_the_models_own_logprobs_group_by_group(name):
    t = trainer(name, temperature=0.7, token_budget=30)
    groups = batch()
    found = t.score(groups)
    assert [len(scores) for scores in found] == [len(g.episodes) for g in groups]
    for group, scores in zip(groups, found, strict=True):
        for episode, scored in zip(group.episodes, scores, strict=True):
            (row,) = episode.rows
            start, ids = len(row.prompt), torch.from_numpy(row.token_ids)
            with torch.no_grad():
                logits = t.model(ids[None]).logits[0, start - 1 : -1] / 0.7
            expected = torch.log_softmax(logits, -1).gather(1, ids[start:, None])[:, 0]
            torch.testing.assert_close(torch.from_numpy(scored), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_micro_batches_do_not_change_the_step(aggregation):
    results = []
    for budget in (1, 40, 10_000):
        t = trainer(options=replace(SCALERL, aggregation=aggregation), token_budget=budget)
        report = t.step(batch())
        results.append((report, t.weights()))
    few, many = results[0], results[-1]
    assert few[0].micro_batches > many[0].micro_batches == 1
    assert few[0].loss == pytest.approx(many[0].loss, abs=1e-6)
    assert few[0].grad_norm == pytest.approx(many[0].grad_norm, rel=1e-4)
    for name, value in many[1].items():
        torch.testing.assert_close(few[1][name], value, atol=2e-5, rtol=1e-3)


def test_it_learns_what_is_rewarded():
    t = trainer()
    before = after = None
    for step in range(30):
        t.step(batch(seed=step, prompts=6, generations=6))
        with torch.no_grad():
            probe = t.model(torch.tensor([[1, 2, 3]])).logits[0, -1].softmax(-1)[7].item()
        before = probe if before is None else before
        after = probe
    assert after > 2 * before


def test_step_reports_version_warm_up_and_diagnostics():
    t = LocalTrainer(model_of(), SCALERL, OptimiserSection(lr=1e-3, warmup_steps=4), **TRAINER)
    rates = [t.step(batch(seed=i)).lr for i in range(6)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    report = t.step(batch(seed=9))
    assert report.version == 7 and report.diagnostics.staleness_max == 6
    assert report.diagnostics.ratio_mean > 0 and report.diagnostics.entropy > 0


def test_a_gradient_that_is_not_finite_changes_nothing():
    t = trainer()
    t.step(batch())
    before = copy.deepcopy(dict(t.weights()))
    t.options = replace(SCALERL, loss=f"{__name__}:broken", constants={})
    with pytest.raises(NonFiniteGradient, match=r"nothing was changed; prompts p0, p1, p2$"):
        t.step(batch(seed=1))
    with pytest.raises(NonFiniteGradient, match=r"prompts p0, p1, p2, p3, \.\.\.$"):
        t.step(batch(seed=1, prompts=6))
    assert t.version == 1
    for name, value in t.weights().items():
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


def broken(logprobs_N, batch):
    from scalerl.algorithm.losses import cispo

    found = cispo(logprobs_N, batch)
    return replace(found, loss_N=found.loss_N * float("nan"))


@pytest.mark.parametrize("zero_variance", ["drop", "keep"])
def test_a_batch_without_advantages_moves_no_weight(zero_variance):
    """Neither weight decay nor the momentum of the steps before does."""
    t = trainer(options=replace(SCALERL, zero_variance=zero_variance))
    t.step(batch())
    before = {name: value.clone() for name, value in t.weights().items()}
    state = copy.deepcopy(t.optimiser.state_dict())
    flat = [without_variance(g) for g in batch(seed=1)]
    report = t.step(flat)
    assert report.grad_norm == 0.0 and report.version == t.version == 2
    assert all(torch.equal(value, before[name]) for name, value in t.weights().items())
    after = t.optimiser.state_dict()["state"]
    assert all(torch.equal(after[i][key], value) for i, of in state["state"].items()
               for key, value in of.items())  # fmt: skip


def test_an_empty_batch_is_a_step_without_a_change():
    t = trainer()
    before = copy.deepcopy(dict(t.weights()))
    report = t.step([])
    assert report.loss == 0.0 and report.micro_batches == 0 and t.version == 1
    for name, value in t.weights().items():
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_checkpoint_continues_bit_for_bit(tmp_path, name):
    straight, first = trainer(name), trainer(name)
    for seed in range(3):
        straight.step(batch(seed=seed))
        first.step(batch(seed=seed))
    first.save(tmp_path / "step_3")
    second = LocalTrainer(model_of(name, seed=5), first.options, first.settings, **TRAINER)
    second.load(tmp_path / "step_3")
    assert second.version == 3
    for t in (straight, second):
        t.step(batch(seed=3))
    for key, value in straight.weights().items():
        torch.testing.assert_close(second.weights()[key], value, atol=0, rtol=0)


def test_a_checkpoint_is_a_hugging_face_model(tmp_path):
    t = trainer()
    t.step(batch())
    t.save(tmp_path / "step_1")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "step_1")
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(loaded(ids).logits, t.model.eval()(ids).logits)


def test_a_broken_checkpoint_is_refused(tmp_path):
    t = trainer()
    with pytest.raises(InputError, match="no whole checkpoint"):
        t.load(tmp_path)
    trainer("gpt2").save(tmp_path / "other")
    with pytest.raises(InputError, match="another model"):
        t.load(tmp_path / "other")
    narrower = copy.deepcopy(CONFIGS["llama"])
    narrower.intermediate_size = 48
    LocalTrainer(AutoModelForCausalLM.from_config(narrower), t.options, t.settings, **TRAINER).save(
        tmp_path / "narrower"
    )
    with pytest.raises(InputError, match="another model"):
        t.load(tmp_path / "narrower")


def test_a_grad_clip_of_0_clips_nothing():
    clipped, free = (
        trainer(),
        LocalTrainer(
            model_of(),
            SCALERL,
            OptimiserSection(lr=1e-2, warmup_steps=1, eps=1e-8, grad_clip=0.0),
            **TRAINER,
        ),
    )
    before = [p.detach().clone() for p in free.model.parameters()]
    norms = [t.step(batch()).grad_norm for t in (clipped, free)]
    assert norms[0] == pytest.approx(norms[1])
    assert any(not torch.equal(a, b) for a, b in zip(before, free.model.parameters(), strict=True))


# -- what a step says -----------------------------------------------------------------------------


def without_variance(group):
    """All rewards equal."""
    return replace(group, episodes=tuple(e.with_reward(1.0, None) for e in group.episodes))


def test_groups_that_teach_nothing_are_filtered_and_counted():
    first, *others = batch()
    whole, part = trainer(), trainer()
    report = whole.step([without_variance(first), *others])
    assert report.filtered.rollouts == 12 and report.filtered.effective_rollouts == 8
    assert report.kept_tokens == sum(g.tokens for g in others)
    assert report.filtered.zero_variance_prompts == 1
    part.step(others)
    for name, value in part.weights().items():
        torch.testing.assert_close(whole.weights()[name], value, atol=0, rtol=0)


def test_every_row_goes_with_the_prompt_of_its_group():
    """Groups of one size whose prompts differ: a row under another's prompt has another score."""
    t = trainer(token_budget=25)
    groups = batch(prompts=5)
    report = t.step(groups)
    alone = [trainer().score([g])[0] for g in groups]
    gaps = [
        abs(scored - e.rows[0].logprobs[-len(e) :]).mean()
        for g, scores in zip(groups, alone, strict=True)
        for e, scored in zip(g.episodes, scores, strict=True)
    ]
    lengths = [len(e) for g in groups for e in g.episodes]
    expected = np.average(gaps, weights=lengths)
    assert report.diagnostics.gap_mean == pytest.approx(expected, rel=1e-4)


def counting(logprobs_N, batch):
    """A loss that counts something itself."""
    from scalerl.algorithm.losses import cispo

    found = cispo(logprobs_N, batch)
    metrics = {"episodes": float(len(batch))}
    return SimpleNamespace(
        loss_N=found.loss_N, ratio_N=found.ratio_N, truncated_N=found.truncated_N,
        usable_N=found.usable_N, metrics=metrics,
    )  # fmt: skip


def test_what_a_loss_counts_is_told_for_the_whole_batch():
    t = trainer(
        options=replace(SCALERL, loss=f"{__name__}:counting", constants={}), token_budget=20
    )
    report = t.step(batch())
    assert report.micro_batches > 1
    assert report.metrics == {"episodes": 12.0}


# -- several turns --------------------------------------------------------------------------------


def episodes_of_turns(seed=0):
    """A group with observations, forced tokens and a fork, and one of a single turn."""
    rng = np.random.default_rng(seed)

    def turn(n, forced=False):
        logprobs = np.full(n, -np.log(VOCABULARY))
        mask = [forced and i == 1 for i in range(n)]
        return Turn.from_lists(rng.integers(0, VOCABULARY, n), logprobs=logprobs, forced=mask)

    def played(reward):
        row = TokenRow.from_context([1, 2, 3]).with_turn(turn(4, forced=True)).with_context([5, 6])
        row = row.with_turn(turn(3)).with_turn_reward(0.25).with_context([7])
        fork = TokenRow.from_context([1, 2, 3, 5, 9]).with_turn(turn(5))
        return Episode((row, fork), "stop", reward)

    single = [Episode.from_turn([4, 5], turn(n)).with_reward(n % 2, None) for n in (3, 4)]
    return [Group("turns", (played(1.0), played(-1.0))), Group("single", tuple(single))]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_turn_is_scored_behind_what_the_model_saw(name):
    t, groups = trainer(name), episodes_of_turns()
    for group, scores in zip(groups, t.score(groups), strict=True):
        for episode, scored in zip(group.episodes, scores, strict=True):
            expected = []
            for row in episode.rows:
                ids = torch.from_numpy(row.token_ids)
                with torch.no_grad():
                    logits = t.model(ids[None]).logits[0, :-1]
                found = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
                expected.append(found[torch.from_numpy(row.written_N[1:])])
            assert len(scored) == len(episode)
            torch.testing.assert_close(
                torch.from_numpy(scored), torch.cat(expected), atol=2e-5, rtol=1e-4
            )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_a_step_of_several_turns_is_the_same_however_it_is_cut(name, credit):
    options = replace(SCALERL, credit=credit, loss="gspo", constants={})
    whole, cut = (trainer(name, options, token_budget=n) for n in (4096, 1))
    reports = [t.step(episodes_of_turns()) for t in (whole, cut)]
    assert [r.micro_batches for r in reports] == [1, 4]
    for report in reports:
        # Prompts [1 2 3] and [4 5], observations [5 6] and [5 9] of each of two episodes.
        assert (report.context_tokens, report.forks) == (5 + 8, 2)
        assert (report.loss_tokens, report.kept_tokens) == (29, 31)
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm, rel=1e-4)


# -- a KL term ------------------------------------------------------------------------------------


def test_a_kl_term_is_taken_to_the_starting_model_and_reported():
    options = replace(SCALERL, kl_coefficient=0.5)
    t = trainer(options=options, reference=model_of())
    first, second = t.step(batch()), t.step(batch(seed=1))
    assert first.kl == pytest.approx(0.0, abs=1e-6)
    assert second.kl > 1e-3
    other = trainer(options=options, reference=model_of(seed=1))
    assert other.step(batch()).kl > 1e-4
    assert trainer().step(batch()).kl == 0.0


def test_a_kl_term_holds_the_policy_back():
    free, held = (
        trainer(),
        trainer(options=replace(SCALERL, kl_coefficient=10.0), reference=model_of()),
    )
    for t in (free, held):
        for seed in range(5):
            t.step(batch(seed=seed))
    start = trainer().score(batch())
    moved = [
        np.mean([abs(a - b).mean() for g, h in zip(t.score(batch()), start, strict=True)
                 for a, b in zip(g, h, strict=True)])
        for t in (free, held)
    ]  # fmt: skip
    assert moved[1] < 0.7 * moved[0]


# -- memory ---------------------------------------------------------------------------------------


def out_of_memory_above(t, tokens):
    """Micro-batches of more tokens get what torch's allocator says when it has nothing left."""
    inner = t.scorer.score

    def score(*given):
        found = inner(*given)
        if found.tokens > tokens:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
            )
        return found

    t.scorer.score = score


@pytest.mark.parametrize("budget", [4096, 48])
def test_the_loss_of_a_step_is_that_of_the_whole_batch_however_it_is_cut(budget):
    t, groups = trainer(token_budget=budget), batch()
    prepared = prepare(groups, t.options)
    scored = t.scorer.logprobs(prepared.batch, 4096)
    expected = float(objective(scored, prepared.batch, t.options).loss)
    assert expected != 0.0
    assert t.step(groups).loss == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("short_of_memory", [False, True])
def test_no_bit_of_a_step_depends_on_how_many_threads_there_are(short_of_memory):
    alone, together = trainer(token_budget=48), trainer(token_budget=48)
    together.threads = 2
    for seed in range(3):
        if short_of_memory and seed == 1:
            for t in (alone, together):
                out_of_memory_above(t, 40)
        a, b = (t.step(batch(seed=seed)) for t in (alone, together))
        assert a.micro_batches > 1
        assert (a.loss, a.grad_norm, a.forward_tokens, a.micro_batches, a.notes) == (
            b.loss, b.grad_norm, b.forward_tokens, b.micro_batches, b.notes
        )  # fmt: skip
        assert a.diagnostics == b.diagnostics
    for name, value in alone.weights().items():
        assert torch.equal(together.weights()[name], value)


def test_out_of_memory_makes_micro_batches_smaller_and_says_so():
    t, calm = trainer(token_budget=4096), trainer(token_budget=4096)
    out_of_memory_above(t, 40)
    report = t.step(batch())
    assert report.version == 1 and report.micro_batches > 1
    assert report.notes == ("memory ran out: micro-batches of 32 tokens from now",)
    assert t.step(batch(seed=1)).notes == ()
    calm.step(batch())
    calm.step(batch(seed=1))
    for name, value in calm.weights().items():
        torch.testing.assert_close(t.weights()[name], value, atol=2e-5, rtol=1e-3)


def test_an_episode_that_does_not_fit_the_memory_alone_ends_with_advice():
    t = trainer()
    out_of_memory_above(t, 0)
    with pytest.raises(MemoryError, match=r"one episode of 1\d tokens .* lower length.max_tokens"):
        t.step(batch())


def test_a_step_that_fails_in_the_optimiser_is_not_taken_twice():
    t = trainer()

    def full():
        raise RuntimeError("CUDA out of memory")

    t.optimiser.step = full
    with pytest.raises(RuntimeError, match="out of memory"):
        t.step(batch())
    assert t.version == 0 and t.token_budget == 8192


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    t = trainer()
    t.scorer.score = lambda *given: torch.zeros(2) @ torch.zeros(3)
    with pytest.raises(RuntimeError, match="size"):
        t.step(batch())
    assert t.token_budget == 8192


# -- by name --------------------------------------------------------------------------------------


def spec(**changes):
    given = {"model": model_path("tiny"), "dtype": "float32", "head": "fp32", "options": SCALERL,
             "optimiser": OptimiserSection(), "temperature": 1.0, "token_budget": 4096,
             "device": "cpu", "trust_remote_code": False}  # fmt: skip
    return TrainerSpec(**given | changes)


def test_a_trainer_is_made_by_name_and_goes_on_from_a_checkpoint(tmp_path):
    first = TRAINERS["local"](spec())
    first.step(batch())
    first.save(tmp_path / "step_1")
    second = TRAINERS["local"](spec(checkpoint=str(tmp_path / "step_1")))
    assert second.version == 1
    for name, value in first.weights().items():
        assert torch.equal(second.weights()[name], value)


def test_a_trainer_with_a_kl_term_brings_its_own_reference():
    t = TRAINERS["local"](spec(options=replace(SCALERL, kl_coefficient=0.1)))
    assert t.step(batch()).kl == pytest.approx(0.0, abs=1e-6)


def test_an_unknown_trainer_is_refused():
    with pytest.raises(InputError, match="no trainer 'locla': did you mean 'local'"):
        TRAINERS["locla"]


def sgd(parameters, settings):
    return torch.optim.SGD(parameters, lr=settings.lr)


def test_the_optimiser_is_the_one_named():
    options = OptimiserSection(name=f"{__name__}:sgd", lr=1.0, warmup_steps=1, grad_clip=0.0)
    t = LocalTrainer(model_of(), SCALERL, options, **TRAINER)
    before = {name: p.clone() for name, p in t.weights().items()}
    t.step(batch())
    for name, p in t.model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] - p.grad)
    with pytest.raises(InputError, match="no optimiser 'adam': did you mean 'adamw'"):
        LocalTrainer(model_of(), SCALERL, OptimiserSection(name="adam"), **TRAINER)
