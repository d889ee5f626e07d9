"""The trainer over many ranks: the one-process trainer's step, whatever is shared out and how."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_pool import RankPool
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
)

from scalerl.algorithm.aggregation import AGGREGATIONS
from scalerl.algorithm.episode import Episode, Group, Turn
from scalerl.algorithm.losses import LOSSES
from scalerl.algorithm.options import options_from_recipe
from scalerl.recipe import Recipe
from scalerl.recipe.sections_runtime import OptimiserSection
from scalerl.trainer.interface import NonFiniteGradient, TrainerSpec
from scalerl.trainer.micro import balanced_shares
from scalerl.trainer.registry import TRAINERS

#: The options of the default recipe.
SCALERL = options_from_recipe(Recipe())

WORDS = 30
LLAMA = {"vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
CONFIGS = {
    "untied": LlamaConfig(**LLAMA, tie_word_embeddings=False),
    "tied": LlamaConfig(**LLAMA, tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                       embd_pdrop=0.0, attn_pdrop=0.0),
    # Its attention knows distances, not positions: rows go through it one at a time.
    "bloom": BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4),
    "mixtral": MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2,
                             sliding_window=None),
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    pool = RankPool(3)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories of small models by name."""
    folder = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    return folder


def spec_of(model, **changes):
    given = {"model": str(model), "dtype": "float32", "head": "fp32", "options": SCALERL,
             # The first step of Adam is a sign, rounding and all: not with this eps.
             "optimiser": OptimiserSection(lr=1e-2, warmup_steps=1, eps=1e-2), "temperature": 0.8,
             "token_budget": 40, "device": "cpu", "trust_remote_code": False}  # fmt: skip
    return TrainerSpec(**given | changes)


def batch(seed=0, prompts=4, generations=4):
    """Ragged episodes of two versions, some tokens forced."""
    rng = np.random.default_rng(seed)
    groups = []
    for p in range(prompts):
        turns = []
        for _ in range(generations):
            n = int(rng.integers(1, 14))
            forced = np.zeros(n, dtype=bool)
            forced[-1] = n > 9
            turns.append(
                Turn(rng.integers(0, WORDS, n), rng.normal(-3.0, 0.5, n).astype(np.float32),
                     rng.integers(0, 2, n), forced, "stop")
            )  # fmt: skip
        prompt = rng.integers(0, WORDS, int(rng.integers(1, 6)))
        episodes = [Episode.from_turn(prompt, turn).with_reward(float(rng.standard_normal()), None)
                    for turn in turns]  # fmt: skip
        groups.append(Group(f"p{p}", tuple(episodes)))
    return groups


# -- work of the ranks ----------------------------------------------------------------------------


def gradients(t, groups):
    """Of a batch before they are clipped, whole; and the report of the step."""
    kept = {}
    clip = t._clip_to

    def look(longest):
        for name, master in t.masters.by_name.items():
            whole = getattr(master.grad, "full_tensor", lambda m=master: m.grad)()
            kept[name] = whole.detach().clone()
        return clip(longest)

    t._clip_to = look
    report = t.step(groups)
    weights = {name: tensor.clone() for name, tensor in t.weights().items()}
    return kept, report, weights


def several(place, specs, groups):
    """One step of a trainer of each spec; they share the process group of this process."""
    import scalerl.trainer.fsdp as fsdp

    joined, out = [], []

    def join(spec):
        if not joined:
            joined.append(real(spec))
        return joined[0]

    real, fsdp.join_process_group = fsdp.join_process_group, join
    try:
        for spec in specs:
            out.append(gradients(TRAINERS["fsdp"](replace(spec, ranks=place)), groups))
    finally:
        fsdp.join_process_group = real
    return out


def apart(found, expected):
    """Largest difference of any gradient or weight, relative to its tensor's largest element."""
    return max(
        (found[n] - expected[n]).abs().max().item() / (expected[n].abs().max().item() + 1e-12)
        for n in expected
    )


# -- equality -------------------------------------------------------------------------------------


def every_loss(model):
    """Every loss with every aggregation, and a KL term."""
    chosen = [(loss, "prompt") for loss in LOSSES] + [("cispo", a) for a in AGGREGATIONS]
    out = [
        spec_of(
            model,
            options=replace(SCALERL, loss=loss, constants={}, aggregation=a, constant_length=16),
        )
        for loss, a in chosen
    ]
    return [*out, spec_of(model, options=replace(SCALERL, kl_coefficient=0.3))]


def test_gradients_are_those_of_one_process_for_every_loss_and_aggregation(ranks, models):
    world = 2
    specs = every_loss(models / "untied")
    found = ranks.run(world, several, specs, batch())
    for i, spec in enumerate(specs):
        expected, report, weights = gradients(TRAINERS["local"](spec), batch())
        for rank in range(world):
            g, r, w = found[rank][i]
            assert apart(g, expected) < 1e-6, (spec.options, rank)
            assert apart(w, weights) < 1e-6
            assert r.loss == pytest.approx(report.loss, abs=1e-6)
            assert r.grad_norm == pytest.approx(report.grad_norm, rel=1e-6)
            assert r.diagnostics.ratio_mean == pytest.approx(report.diagnostics.ratio_mean)
            assert r.diagnostics.entropy == pytest.approx(report.diagnostics.entropy, rel=1e-5)
            assert r.kept_tokens == report.kept_tokens <= r.forward_tokens


def test_tied_heads_other_architectures_mixtures_and_three_ranks(ranks, models):
    specs = [spec_of(models / name) for name in ("tied", "gpt2", "mixtral", "bloom")]
    # Two rows for three ranks: one has none, and takes part with empty micro-batches.
    for groups in (batch(), batch(prompts=1, generations=2)):
        found = ranks.run(3, several, specs, groups)
        for i, spec in enumerate(specs):
            expected, report, weights = gradients(TRAINERS["local"](spec), groups)
            for rank in range(3):
                g, r, w = found[rank][i]
                assert apart(g, expected) < 1e-6, (spec.model, rank)
                assert apart(w, weights) < 1e-6
                assert r.grad_norm == pytest.approx(report.grad_norm, rel=1e-6)


def test_recorded_experts_are_replayed_by_every_rank(ranks, models):
    rng = np.random.default_rng(3)

    def routed(group):
        """The prompt's experts are those of its one prefill; each episode has its own then."""
        prompt = len(group.episodes[0].rows[0].prompt)
        first = rng.random((prompt, 2, 4))
        out = []
        for e in group.episodes:
            noise = np.concatenate([first, rng.random((len(e) - 1, 2, 4))])
            out.append(replace(e, experts=noise.argsort(-1)[..., :2].astype(np.int16)))
        return replace(group, episodes=tuple(out))

    groups = [routed(g) for g in batch()]
    spec = spec_of(models / "mixtral", replay=True)
    expected, report, weights = gradients(TRAINERS["local"](spec), groups)
    own, *_ = gradients(TRAINERS["local"](replace(spec, replay=False)), groups)
    assert apart(own, expected) > 0.01
    for ((g, r, w),) in ranks.run(2, several, [spec], groups):
        assert apart(g, expected) < 1e-6 and apart(w, weights) < 1e-6
        assert r.grad_norm == pytest.approx(report.grad_norm, rel=1e-6)


def test_the_gradient_is_clipped_over_all_ranks(ranks, models):
    spec = spec_of(models / "untied", optimiser=OptimiserSection(lr=1.0, warmup_steps=1, eps=1e-2,
                                                          grad_clip=1e-3))  # fmt: skip
    ((_, one, w1), (_, other, w2)) = (f[0] for f in ranks.run(2, several, [spec], batch()))
    _, report, weights = gradients(TRAINERS["local"](spec), batch())
    assert one.grad_norm == other.grad_norm == pytest.approx(report.grad_norm, rel=1e-6)
    assert report.grad_norm > 1e-3
    assert apart(w1, weights) < 1e-6 and apart(w2, weights) < 1e-6


def test_bf16_is_computed_in_but_stepped_on_in_fp32(ranks, models):
    spec = spec_of(models / "untied", dtype="bfloat16", optimiser=OptimiserSection(lr=1e-5))
    found = ranks.run(2, masters_moved, spec, batch())
    assert found[0]["computed"] == {"torch.bfloat16"} and found[0]["published"] == {
        "torch.bfloat16"
    }
    assert found[0]["kept"] == {"torch.float32"}
    assert found[0]["moved"] > 0.99 and found[0]["seen"] < 0.2  # a step too small for BF16


def masters_moved(place, spec, groups):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    computed = set()
    for block in t.model.model.layers:
        block.mlp.register_forward_hook(lambda m, i, o: computed.add(str(o.dtype)))
    before = {n: p.full_tensor().clone() for n, p in t.sharded.parameters().items()}
    public = {n: w.clone() for n, w in t.weights().items()}
    t.step(groups)
    after = {n: p.full_tensor() for n, p in t.sharded.parameters().items()}
    new = dict(t.weights().items())
    moved = torch.cat([(after[n] != before[n]).flatten() for n in before]).float().mean()
    seen = torch.cat([(new[n] != public[n]).flatten() for n in before]).float().mean()
    return {
        "computed": computed,
        "kept": {str(p.dtype) for p in t.sharded.parameters().values()},
        "published": {str(w.dtype) for w in new.values()},
        "moved": moved.item(),
        "seen": seen.item(),
    }


def counted(place, spec, groups):
    """A step, and how often each block's first product was made in it."""
    t = TRAINERS["fsdp" if place else "local"](replace(spec, ranks=place))
    calls = []
    t.model.model.layers[0].mlp.gate_proj.register_forward_hook(lambda *_: calls.append(1))
    found = gradients(t, groups)
    return (len(calls), *found)


def test_activations_that_are_computed_again_change_nothing_but_the_work(ranks, models):
    spec = spec_of(models / "untied", token_budget=4096)
    _, expected, _, weights = counted(None, spec, batch())
    again = replace(spec, recompute=True)
    for calls, g, _, w in (counted(None, again, batch()), *ranks.run(2, counted, again, batch())):
        assert calls == 2  # once in each pass
        assert apart(g, expected) < 1e-6 and apart(w, weights) < 1e-6


# -- scoring and sharing out ----------------------------------------------------------------------


def score(place, spec, groups):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    first = t.score(groups)
    t.step(groups)
    return first, t.score(groups)  # nothing of the old weights stays gathered


def test_scores_are_those_of_one_process_before_and_after_a_step(ranks, models):
    spec = spec_of(models / "tied")
    t = TRAINERS["local"](spec)
    before = t.score(batch())
    t.step(batch())
    expected = (before, t.score(batch()))
    for found in ranks.run(2, score, spec, batch()):
        for ours, theirs in zip(found, expected, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                for x, y in zip(a, b, strict=True):
                    np.testing.assert_allclose(x, y, atol=2e-6)


def test_rows_are_shared_out_by_work():
    rng = np.random.default_rng(0)
    work = rng.lognormal(5, 1, 200).tolist()
    parts = balanced_shares(work, 4)
    assert sorted(i for part in parts for i in part) == list(range(200))
    loads = [sum(work[i] for i in part) for part in parts]
    assert max(loads) < 1.01 * min(loads)


# -- what goes wrong ------------------------------------------------------------------------------


def not_finite(place, spec, groups):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    before = {n: w.clone() for n, w in t.weights().items()}
    if place.rank == 1:  # one rank alone sees it
        t.model.model.layers[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * torch.nan,))
    try:
        t.step(groups)
        why = ""
    except NonFiniteGradient as error:
        why = str(error)
    same = all(torch.equal(w, before[n]) for n, w in t.weights().items())
    return why, same, t.version


def test_a_gradient_that_is_not_finite_on_one_rank_is_refused_by_all(ranks, models):
    found = ranks.run(2, not_finite, spec_of(models / "untied"), batch())
    for why, same, version in found:
        assert why.startswith("the gradient of step 1 is nan") and same and version == 0


def short_of_memory(place, spec, groups, where):
    """Rank 1 has no memory for more than 24 tokens in the forward or backward pass of a layer."""
    t = TRAINERS["fsdp"](replace(spec, ranks=place))

    def full(hidden):
        if place.rank == 1 and hidden.shape[0] * hidden.shape[1] > 24:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            full(grad)
            return grad

    layer = t.model.model.layers[1]
    forward = layer.mlp.forward

    def patched(x):
        if where == "forward":
            full(x)
        return forward(Full.apply(x) if where == "backward" else x)

    layer.mlp.forward = patched
    report = t.step(groups)
    t.score(groups)
    return report.notes, report.grad_norm, {n: w.clone() for n, w in t.weights().items()}


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_is_short_of_memory_makes_all_take_smaller_micro_batches(ranks, models, where):
    spec = spec_of(models / "untied")
    found = ranks.run(2, short_of_memory, spec, batch(), where)
    t = TRAINERS["local"](spec)
    report = t.step(batch())
    for notes, norm, weights in found:
        assert notes == ("memory ran out: micro-batches of 20 tokens from now",)
        assert norm == pytest.approx(report.grad_norm, rel=1e-6)
        assert apart(weights, t.weights()) < 1e-6


# -- weights leave, and come back -----------------------------------------------------------------


def streamed(place, spec):
    """How much of the model a rank has whole at once while its weights leave."""
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    import weakref

    alive, most, total = [], 0, 0
    for tensor in t.weights().values():
        alive.append(weakref.ref(tensor))
        total += tensor.numel()
        here = [r() for r in alive]
        most = max(most, sum(x.numel() for x in here if x is not None))
        del here
    return most, total, max(p.numel() for p in t.sharded.parameters().values())


def test_weights_leave_one_tensor_at_a_time(ranks, models):
    for most, total, largest in ranks.run(2, streamed, spec_of(models / "mixtral")):
        assert most <= 2 * largest < total


def rates(place, spec, steps):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    return [t.step(batch(seed=i)).lr for i in range(steps)]


def test_the_learning_rate_decays_as_in_one_process(ranks, models):
    decay = OptimiserSection(lr=1e-2, warmup_steps=1, eps=1e-2, decay="linear", decay_start=1,
                      decay_steps=2, min_lr_ratio=0.1)  # fmt: skip
    spec = spec_of(models / "untied", optimiser=decay)
    found = ranks.run(2, rates, spec, 4)
    one = TRAINERS["local"](spec)
    assert found == [[one.step(batch(seed=i)).lr for i in range(4)]] * 2
    assert found[0] == pytest.approx([1e-2, 1e-2, 5.5e-3, 1e-3])


def two_steps(place, spec, folder, save_at=None):
    """Steps to the second version, from wherever the spec goes on from; the weights there."""
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    began = t.version
    while t.version < 2:
        t.step(batch(seed=t.version))
        if t.version == save_at:
            t.save(Path(folder))
    return began, {n: w.clone() for n, w in t.weights().items()}


@pytest.mark.parametrize("model", ["tied", "mixtral"])
def test_a_checkpoint_goes_on_with_any_number_of_ranks_and_in_one_process(
    ranks, models, model, tmp_path
):
    spec, saved = spec_of(models / model), tmp_path / "step_1"
    _, expected = ranks.run(2, two_steps, spec, str(saved), 1)[0]
    names = sorted(p.name for p in saved.iterdir())
    assert "model.safetensors" in names and "config.json" in names
    assert [n for n in names if n.startswith("optimiser")] == [
        "optimiser-00000-of-00002.safetensors",
        "optimiser-00001-of-00002.safetensors",
    ]
    assert json.loads((saved / "trainer.json").read_text()) == {"version": 1}
    again = replace(spec, checkpoint=str(saved))
    one = TRAINERS["local"](again)
    assert one.version == 1
    one.step(batch(seed=1))
    assert apart(dict(one.weights()), expected) < 1e-6
    for world in (1, 2, 3):
        began, weights = ranks.run(world, two_steps, again, "")[0]
        assert began == 1 and apart(weights, expected) < 1e-6, world


def save_in_small_files(place, spec, folder):
    import scalerl.trainer.model_shards as model_shards

    usual, model_shards.FILE_BYTES = model_shards.FILE_BYTES, 20_000
    try:
        t = TRAINERS["fsdp"](replace(spec, ranks=place))
        t.step(batch())
        t.save(Path(folder))
    finally:
        model_shards.FILE_BYTES = usual
    return {n: w.clone() for n, w in t.weights().items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_written_file_by_file(ranks, models, tmp_path, dtype):
    """Rank 0 holds no more than one file's tensors."""
    spec = spec_of(models / "untied", dtype=dtype)
    expected, _ = ranks.run(2, save_in_small_files, spec, str(tmp_path))
    sizes = [p.stat().st_size for p in tmp_path.glob("model-*.safetensors")]
    assert len(sizes) > 2 and max(sizes) < 22_000
    found = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert str(found.dtype) == f"torch.{dtype}"
    for name, parameter in found.named_parameters():
        assert torch.equal(parameter, expected[name]), name
    assert TRAINERS["local"](replace(spec, checkpoint=str(tmp_path))).version == 1


def test_a_checkpoint_of_one_process_goes_on_with_two_ranks(ranks, models, tmp_path):
    for dtype in ("float32", "bfloat16"):
        spec = spec_of(models / "untied", dtype=dtype)
        t = TRAINERS["local"](spec)
        t.step(batch(seed=0))
        t.save(tmp_path / dtype)
        masters = {n: m.detach().clone() for n, m in t.masters.by_name.items()}
        again = replace(spec, checkpoint=str(tmp_path / dtype))
        for found in ranks.run(2, masters_of, again):
            assert all(torch.equal(found[n], masters[n]) for n in masters), dtype
        if dtype == "float32":
            t.step(batch(seed=1))
            _, weights = ranks.run(2, two_steps, again, "")[0]
            assert apart(weights, t.weights()) < 1e-6


def masters_of(place, spec):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    return {n: p.full_tensor().detach().clone() for n, p in t.sharded.parameters().items()}


def cannot_write(place, spec, folder):
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    path = Path(folder)
    if place.rank == 1:  # another machine, which does not share the directory
        path = Path(folder) / "elsewhere" / "step_1"
    try:
        t.save(path)
    except OSError as error:
        return str(error)
    return ""


def test_a_rank_that_does_not_see_the_checkpoint_directory_is_named_by_all(ranks, models, tmp_path):
    found = ranks.run(2, cannot_write, spec_of(models / "untied"), str(tmp_path / "step_1"))
    assert found[0] == found[1]
    assert found[0].startswith("rank 1 of the trainer, on ") and "all of them share" in found[0]


# -- how much work it is --------------------------------------------------------------------------


def measured(place, spec, groups):
    """Floating-point operations of a step, and its report."""
    t = TRAINERS["fsdp"](replace(spec, ranks=place))
    t.step(groups)  # FSDP's first pass sets things up
    with FlopCounterMode(display=False) as counter:
        report = t.step(groups)
    return counter.get_total_flops(), report


@pytest.mark.parametrize("model", ["untied", "mixtral"])
def test_two_ranks_take_hardly_more_work_than_one_process(ranks, models, model):
    """A prompt is computed once for its group, by one rank, and nothing is padded."""
    rng = np.random.default_rng(0)
    groups = []
    for p in range(12):
        prompt = rng.integers(0, WORDS, int(rng.integers(20, 60)))
        turns = [Turn.from_lists(rng.integers(0, WORDS, int(rng.integers(5, 60))))
                 for _ in range(6)]  # fmt: skip
        episodes = [Episode.from_turn(prompt, turn).with_reward(float(rng.standard_normal()), None)
                    for turn in turns]  # fmt: skip
        groups.append(Group(f"p{p}", tuple(episodes)))
    spec = spec_of(models / model, token_budget=512)
    ((alone, one),) = ranks.run(1, measured, spec, groups)
    (first, report), (second, _) = ranks.run(2, measured, spec, groups)
    local = TRAINERS["local"](spec)
    local.step(groups)
    tokens = local.step(groups).forward_tokens
    assert tokens == one.forward_tokens
    assert report.forward_tokens <= 1.05 * tokens
    assert first + second <= 1.05 * alone
    assert max(first, second) <= 1.1 * min(first, second)
