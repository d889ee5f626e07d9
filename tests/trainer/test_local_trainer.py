"""The local trainer: exact log-probs, micro-batches that change nothing, refusal, resume."""

import copy

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig

from scalerl.algorithm.objective import Options, prepare
from scalerl.algorithm.rollout import Group, Rollout
from scalerl.errors import InputError
from scalerl.trainer.interface import NonFiniteGradient
from scalerl.trainer.local import LocalTrainer, Optimiser
from scalerl.trainer.micro import micro_batches

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


def batch(options, seed=0, prompts=3, generations=4):
    """Groups with ragged rollouts whose reward is the share of token 7."""
    rng = np.random.default_rng(seed)
    groups = []
    for p in range(prompts):
        rollouts = []
        for _ in range(generations):
            n = int(rng.integers(1, 12))
            ids = rng.integers(0, VOCABULARY, n)
            reward = 1.0 if 7 in ids else -1.0
            rollouts.append(
                Rollout(
                    ids,
                    np.full(n, -np.log(VOCABULARY), np.float32),
                    np.zeros(n, dtype=np.int64),
                    np.zeros(n, dtype=bool),
                    "stop",
                    reward + 0.01 * float(rng.standard_normal()),
                )
            )
        prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 6)))
        groups.append(Group(f"p{p}", prompt, tuple(rollouts)))
    prepared = prepare(groups, options)
    prompt_of = {id(r): g.prompt_token_ids for g in groups for r in g.rollouts}
    return [prompt_of[id(r)] for r in prepared.rollouts], prepared


def trainer(name="llama", options=None, **changes):
    fast = Optimiser(lr=1e-2, warmup_steps=1, eps=1e-8)
    return LocalTrainer(model_of(name), options or Options(), fast, **changes)


@pytest.mark.parametrize("name", CONFIGS)
def test_logprobs_equal_the_models_own(name):
    t = trainer(name, temperature=0.7)
    t.model.eval()
    prompts, prepared = batch(t.options)
    completions = [r.token_ids for r in prepared.rollouts]
    with torch.no_grad():
        found, _ = t.logprobs(prompts, completions)
        for i, (p, c) in enumerate(zip(prompts, completions, strict=True)):
            ids = torch.from_numpy(np.concatenate([p, c]))[None]
            logits = t.model(ids).logits[0, len(p) - 1 : -1] / 0.7
            expected = torch.log_softmax(logits, -1).gather(1, ids[0, len(p) :, None])[:, 0]
            torch.testing.assert_close(found[i, : len(c)], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_micro_batches_do_not_change_the_step(aggregation):
    results = []
    for budget in (1, 40, 10_000):
        t = trainer(options=Options(aggregation=aggregation), token_budget=budget)
        report = t.step(*batch(t.options))
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
        prompts, prepared = batch(t.options, seed=step, prompts=6, generations=6)
        t.step(prompts, prepared)
        with torch.no_grad():
            probe = t.model(torch.tensor([[1, 2, 3]])).logits[0, -1].softmax(-1)[7].item()
        before = probe if before is None else before
        after = probe
    assert after > 2 * before


def test_step_reports_version_warm_up_and_diagnostics():
    t = LocalTrainer(model_of(), Options(), Optimiser(lr=1e-3, warmup_steps=4))
    rates = [t.step(*batch(t.options, seed=i)).lr for i in range(6)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    report = t.step(*batch(t.options, seed=9)).to_dict()
    assert report["step"] == 7 and report["staleness"]["max"] == 6
    assert report["ratio"]["mean"] > 0 and report["entropy"] > 0


def test_a_gradient_that_is_not_finite_changes_nothing():
    t = trainer()
    t.step(*batch(t.options))
    prompts, prepared = batch(t.options, seed=1)
    before = copy.deepcopy(dict(t.weights()))
    t.options = Options(loss=f"{__name__}:broken")
    with pytest.raises(NonFiniteGradient, match="nothing was changed"):
        t.step(prompts, prepared)
    assert t.version == 1
    for name, value in t.weights().items():
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


def broken(logprobs_BT, batch):
    from scalerl.algorithm.losses import cispo

    found = cispo(logprobs_BT, batch)
    return type(found)(
        found.loss_BT * float("nan"), found.ratio_BT, found.truncated_BT, found.usable_BT
    )


def test_an_empty_batch_is_a_step_without_a_change():
    t = trainer()
    before = copy.deepcopy(dict(t.weights()))
    report = t.step([], prepare([], t.options))
    assert report.loss == 0.0 and report.micro_batches == 0 and t.version == 1
    for name, value in t.weights().items():
        torch.testing.assert_close(value, before[name], atol=0, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_checkpoint_continues_bit_for_bit(tmp_path, name):
    straight, first = trainer(name), trainer(name)
    for seed in range(3):
        straight.step(*batch(straight.options, seed=seed))
        first.step(*batch(first.options, seed=seed))
    first.save(tmp_path / "step_3")
    second = LocalTrainer(model_of(name, seed=5), first.options, first.settings)
    second.load(tmp_path / "step_3")
    assert second.version == 3
    for t in (straight, second):
        t.step(*batch(t.options, seed=3))
    for key, value in straight.weights().items():
        torch.testing.assert_close(second.weights()[key], value, atol=0, rtol=0)


def test_a_checkpoint_is_a_hugging_face_model(tmp_path):
    t = trainer()
    t.step(*batch(t.options))
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
    LocalTrainer(AutoModelForCausalLM.from_config(narrower), t.options, t.settings).save(
        tmp_path / "narrower"
    )
    with pytest.raises(InputError, match="another model"):
        t.load(tmp_path / "narrower")


def test_micro_batches_hold_every_row_once_within_the_budget():
    lengths = np.random.default_rng(0).integers(1, 50, 100).tolist()
    parts = micro_batches(lengths, 200)
    assert sorted(i for rows in parts for i in rows) == list(range(100))
    assert all(len(rows) == 1 or len(rows) * lengths[rows[0]] <= 200 for rows in parts)


def test_a_grad_clip_of_0_clips_nothing():
    options = Options()
    clipped, free = (
        trainer(),
        LocalTrainer(
            model_of(), options, Optimiser(lr=1e-2, warmup_steps=1, eps=1e-8, grad_clip=0.0)
        ),
    )
    before = [p.detach().clone() for p in free.model.parameters()]
    norms = [t.step(*batch(options)).grad_norm for t in (clipped, free)]
    assert norms[0] == pytest.approx(norms[1])
    assert any(not torch.equal(a, b) for a, b in zip(before, free.model.parameters(), strict=True))
