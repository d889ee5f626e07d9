"""The head in FP32 for every kind of model, and log-probs that never see tokens × vocabulary."""

import copy
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from scalerl.algorithm.logits import (  # noqa: E402
    Head,
    HeadLinear,
    chunked_logprobs,
    final_hidden,
    head_of,
    plain_logprobs,
    project,
    use_head_precision,
)
from scalerl.errors import InputError  # noqa: E402

SMALL = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    # The defaults of real tokenizers lie outside this vocabulary.
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama-tied": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=61,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, final_logit_softcapping=0.5),
    "granite": lambda: transformers.GraniteConfig(**SMALL, logits_scaling=7.0),
    "cohere": lambda: transformers.CohereConfig(**SMALL, logit_scale=0.25),
    "phi (bias)": lambda: transformers.PhiConfig(**SMALL),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, **MOE, moe_intermediate_size=8, decoder_sparse_step=1
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, **MOE),
}


@pytest.fixture(autouse=True)
def no_onednn():
    """Some virtual machines announce matrix units (AMX) that no process may use: BF16 products by
    way of oneDNN end in an illegal instruction there. Plain kernels will do for these sizes."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def build(name, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]()).to(dtype).eval()
    with torch.no_grad():  # as made, logits are too small to tell a softcap from none
        model.get_output_embeddings().weight.mul_(10)
        if model.get_output_embeddings().bias is not None:
            model.get_output_embeddings().bias.normal_()
    return model


def ids(rows=3, length=7, vocab=61, seed=0):
    return torch.randint(vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


def linear(weight, bias=None):
    """A module with exactly these parameters."""
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    module.weight = torch.nn.Parameter(weight)
    if bias is not None:
        module.bias = torch.nn.Parameter(bias)
    return module


def problem(N=13, V=37, D=5, dtype=torch.float64, bias=True, seed=0, **head):
    """Hidden states, head and targets at random; logits are a few units wide."""
    make = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, dtype=torch.float64, generator=make).to(dtype).requires_grad_()
    weight = torch.randn(V, D, dtype=torch.float64, generator=make).to(dtype)
    offset = torch.randn(V, dtype=torch.float64, generator=make).to(dtype) if bias else None
    target = torch.randint(V, (N,), generator=make)
    return hidden, Head(linear(weight, offset), **head), target


def gradients(logprobs, hidden, head, upstream):
    for tensor in (hidden, head.weight, head.bias):
        if tensor is not None:
            tensor.grad = None
    (logprobs * upstream).sum().backward()
    return [t.grad.clone() for t in (hidden, head.weight, head.bias) if t is not None]


# --- the head of a model ---


@pytest.mark.parametrize("name", MODELS)
def test_head_of_final_hidden_gives_the_models_own_logits(name):
    model = build(name)
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[0, :2] = 0  # left padding
    theirs = model(ids(), attention_mask=mask).logits[mask.bool()]
    ours = head_of(model).logits(final_hidden(model, ids(), mask))[mask.bool()]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_softcap_and_scale_are_found_not_lost_in_small_logits():
    assert head_of(build("gemma2")).softcap == 0.5
    assert head_of(build("granite")).scale == 1 / 7
    assert head_of(build("cohere")).scale == 0.25
    assert head_of(build("phi (bias)")).bias is not None


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral"])
@pytest.mark.parametrize("precision", ["fp32", "model", "bf16-emulated"])
def test_a_bf16_model_has_fp32_logits(name, precision):
    model = build(name, torch.bfloat16)
    logits = head_of(model, precision).logits(final_hidden(model, ids()))
    assert logits.dtype == torch.float32
    assert model.get_output_embeddings().weight.dtype == torch.bfloat16, "the model is as it was"


def test_the_fp32_head_multiplies_the_bf16_numbers_exactly():
    """Each product of two BF16 numbers fits FP32; only the sum rounds, and that at 2^-24."""
    model = build("llama", torch.bfloat16)
    hidden = final_hidden(model, ids())
    exact = hidden.double() @ model.lm_head.weight.double().T
    fp32 = head_of(model).logits(hidden)
    assert (fp32.double() - exact).abs().max() < 1e-6 * exact.abs().max()
    bf16 = head_of(model, "model").logits(hidden)
    assert (bf16.double() - exact).abs().max() > 1e-3 * exact.abs().max()


def test_position_ids_reach_the_model():
    model = build("llama")
    there = torch.arange(7).expand(3, 7)
    torch.testing.assert_close(
        final_hidden(model, ids(), position_ids=there), final_hidden(model, ids())
    )
    apart = final_hidden(model, ids(), position_ids=there * 3)
    assert (apart - final_hidden(model, ids())).abs().max() > 1e-4


def test_a_model_without_a_linear_head_is_refused_in_one_line():
    body = transformers.LlamaModel(transformers.LlamaConfig(**SMALL))
    with pytest.raises(InputError, match="LlamaModel has no linear LM head") as problem:
        head_of(body)
    assert "\n" not in str(problem.value)
    with pytest.raises(InputError, match="has no linear LM head"):
        head_of(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="no body apart from its head"):
        final_hidden(torch.nn.Linear(2, 2), ids())


def test_a_model_that_does_something_unknown_around_its_head_is_refused():
    class Unknown(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 1.01
            return output

    with pytest.raises(InputError, match="not those of its linear head"):
        head_of(Unknown(transformers.LlamaConfig(**SMALL)))


def test_looking_for_the_head_leaves_the_model_in_its_mode():
    model = build("llama").train()
    model.model.layers[0].eval()
    head_of(model)
    assert model.training
    assert not model.model.layers[0].training


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError, match="use one of model, fp32, bf16-emulated"):
        head_of(build("llama"), "fp16")
    with pytest.raises(InputError, match="use one of"):
        use_head_precision(build("llama"), "fp16")


# --- live weights ---


def loss(model, head):
    tokens = ids()
    hidden = final_hidden(model, tokens)[:, :-1].flatten(0, 1)
    return -chunked_logprobs(hidden, head, tokens[:, 1:].flatten(), chunk=(4, 16))[0].mean()


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "gemma2", "granite", "phi (bias)"])
def test_every_parameter_gets_the_gradient_of_the_plain_loss(name):
    """Tied weights from both ends: as embedding and as head."""
    model = build(name)
    loss(model, head_of(model)).backward()
    ours = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    logits = model(ids()).logits[:, :-1].flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, ids()[:, 1:].flatten()).backward()
    for parameter, p in model.named_parameters():
        torch.testing.assert_close(ours[parameter], p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_tied_weight_is_told_from_an_untied_one(name):
    model = build(name)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied == (name == "gpt2")
    with torch.no_grad():
        hidden = final_hidden(model, ids()).flatten(0, 1)
    targets = torch.zeros(len(hidden), dtype=torch.int64)
    chunked_logprobs(hidden, head_of(model), targets)[0].sum().backward()
    assert (model.get_input_embeddings().weight.grad is not None) == tied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_the_head_uses_the_new_weights_after_an_optimiser_step(name, dtype):
    model = build(name, dtype)
    head = head_of(model)
    before = head.logits(torch.ones(1, 16))
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    loss(model, head).backward()
    optimiser.step()
    after = head.logits(torch.ones(1, 16))
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(after, head_of(model).logits(torch.ones(1, 16)), rtol=0, atol=0)


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_the_head_uses_the_new_weights_after_a_load(name, assign):
    model, other = build(name, seed=0), build(name, seed=1)
    head = head_of(model)
    model.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
    model.tie_weights()
    hidden = final_hidden(other, ids())
    torch.testing.assert_close(head.logits(hidden), head_of(other).logits(hidden), rtol=0, atol=0)


# --- the model with a head precision of its own ---


@pytest.mark.parametrize("name", MODELS)
def test_a_model_given_an_fp32_head_computes_the_same_logits_as_ours(name):
    model = build(name, torch.bfloat16)
    ours = head_of(model).logits(final_hidden(model, ids()))
    use_head_precision(model, "fp32")
    theirs = model(ids()).logits
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(theirs, ours)


def test_a_given_precision_keeps_parameters_names_tying_and_generation():
    model = build("gpt2")
    names, weight = list(model.state_dict()), model.get_output_embeddings().weight
    greedy = model.generate(ids(), max_new_tokens=5, do_sample=False)
    use_head_precision(model, "fp32")
    assert isinstance(model.get_output_embeddings(), HeadLinear)
    assert list(model.state_dict()) == names
    assert model.get_output_embeddings().weight is weight is model.transformer.wte.weight
    assert "precision=fp32" in repr(model)
    assert torch.equal(model.generate(ids(), max_new_tokens=5, do_sample=False), greedy)


def test_precision_model_undoes_a_given_precision():
    model = build("llama", torch.bfloat16)
    before = model(ids()).logits
    use_head_precision(model, "fp32")
    use_head_precision(model, "model")
    assert torch.equal(model(ids()).logits, before)


# --- emulated bf16 ---


def test_the_emulated_head_is_torchs_bf16_head():
    hidden, weight = torch.randn(5, 8), torch.randn(7, 8)
    bias = torch.randn(7)
    ours = project(hidden, weight, bias, "bf16-emulated")
    rounded = [x.bfloat16().float() for x in (hidden, weight, bias)]
    torch.testing.assert_close(
        ours, torch.nn.functional.linear(*rounded).bfloat16().float(), rtol=0, atol=0
    )
    real = torch.nn.functional.linear(hidden.bfloat16(), weight.bfloat16(), bias.bfloat16())
    # Kernels may sum in another order: one unit in the last place at most.
    assert ((ours - real.float()).abs() <= 2**-7 * ours.abs()).all()
    assert (ours == real.float()).float().mean() > 0.8


def test_rounding_passes_the_gradient_straight_through():
    hidden = torch.randn(5, 8, requires_grad=True)
    weight = torch.randn(7, 8)
    project(hidden, weight, None, "bf16-emulated").sum().backward()
    torch.testing.assert_close(hidden.grad, weight.bfloat16().float().sum(0).expand(5, 8))


@pytest.mark.parametrize("coarse", ["model", "bf16-emulated"])
def test_an_fp32_head_brings_a_bf16_model_closer_to_the_fp32_model(coarse):
    model = build("llama", torch.bfloat16)
    with torch.no_grad():
        # Logits of trained models share an offset: softmax removes it, rounding to BF16 sees it.
        model.lm_head.weight.add_(1.0)
    exact = copy.deepcopy(model).float()  # the same numbers, computed in FP32 throughout
    tokens = ids(8, 40)
    targets = ids(8, 40, seed=1).flatten()

    def logprobs(model, precision):
        hidden = final_hidden(model, tokens).flatten(0, 1)
        return chunked_logprobs(hidden, head_of(model, precision), targets)[0].detach()

    truth = logprobs(exact, "fp32")
    gap = {p: (logprobs(model, p) - truth).abs().mean() for p in ("fp32", coarse)}
    assert gap["fp32"] < 0.7 * gap[coarse]


# --- chunked log-probs: values and gradients ---

shapes = st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(1, 6))
chunks = st.tuples(st.integers(1, 25), st.integers(1, 50))
heads = st.fixed_dictionaries(
    {"scale": st.sampled_from([1.0, 0.3]), "softcap": st.sampled_from([None, 2.0])}
)


@settings(max_examples=80, deadline=None)
@given(
    shapes, chunks, heads, st.booleans(), st.sampled_from([1.0, 0.6, "each"]),
    st.sampled_from([0, 1000, 10**9]), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_chunked_equals_plain_in_float64(shape, chunk, head, bias, temperature, keep, masked, seed):
    hidden, head, target = problem(*shape, bias=bias, seed=seed, **head)
    N = shape[0]
    upstream = torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if temperature == "each":
        temperature = torch.linspace(0.5, 2.0, N, dtype=torch.float64)
    if masked:
        upstream = upstream.clamp(min=0)
    ours = chunked_logprobs(hidden, head, target, temperature, chunk=chunk, keep=keep)
    plain = plain_logprobs(head.logits(hidden), target, temperature)
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(
        gradients(ours[0], hidden, head, upstream),
        gradients(plain[0], hidden, head, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"scale": 0.5}, {"softcap": 1.5}, {"bias": False}])
@pytest.mark.parametrize("keep", [0, 150])  # 3 × 4 numbers of 8 bytes a block: none, or one
def test_gradients_are_those_of_finite_differences(options, keep):
    hidden, head, target = problem(4, 6, 3, **options)
    parameters = [hidden, head.weight] + ([head.bias] if head.bias is not None else [])

    def run(hidden, weight, bias=None):
        live = Head(_Holder(weight, bias), head.scale, head.softcap)
        return chunked_logprobs(hidden, live, target, 0.7, chunk=(3, 4), keep=keep)[0]

    assert torch.autograd.gradcheck(run, parameters)


class _Holder:
    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias


def test_log_softmax_of_torch_is_the_definition():
    hidden, head, target = problem(bias=False)
    expected = torch.log_softmax(hidden @ head.weight.T / 0.8, -1)
    logprobs, entropy = chunked_logprobs(hidden, head, target, 0.8, chunk=(4, 10))
    torch.testing.assert_close(logprobs, expected[range(13), target], rtol=1e-12, atol=1e-12)
    distribution = torch.distributions.Categorical(logits=expected)
    torch.testing.assert_close(entropy, distribution.entropy(), rtol=1e-12, atol=1e-12)


def test_in_fp32_chunked_and_plain_agree_to_rounding():
    hidden, head, target = problem(300, 5000, 32, dtype=torch.float32)
    upstream = torch.randn(300)
    ours = chunked_logprobs(hidden, head, target, chunk=(128, 512))
    plain = plain_logprobs(head.logits(hidden), target)
    for mine, theirs in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(
        gradients(ours[0], hidden, head, upstream),
        gradients(plain[0], hidden, head, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "model", "bf16-emulated"])
def test_every_precision_of_a_bf16_head_is_that_of_its_logits(precision):
    hidden, head, target = problem(20, 50, 8, dtype=torch.bfloat16, precision=precision)
    upstream = torch.randn(20)
    ours = chunked_logprobs(hidden, head, target, chunk=(7, 16))
    plain = plain_logprobs(head.logits(hidden), target)
    assert ours[0].dtype == torch.float32
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-5, atol=1e-5)
    mine = gradients(ours[0], hidden, head, upstream)
    theirs = gradients(plain[0], hidden, head, upstream)
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b.float(), rtol=2e-2, atol=5e-2)


def test_autocast_does_not_reach_the_head():
    hidden, head, target = problem(20, 50, 8, dtype=torch.float32)
    expected = chunked_logprobs(hidden, head, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = chunked_logprobs(hidden, head, target)
        logits = head.logits(hidden)
        grads = gradients(inside[0], hidden, head, torch.ones(20))
    assert torch.equal(inside[0], expected[0])
    assert torch.equal(inside[1], expected[1])
    assert torch.equal(logits, head.logits(hidden))
    for a, b in zip(grads, gradients(expected[0], hidden, head, torch.ones(20)), strict=True):
        assert torch.equal(a, b)


def test_a_frozen_head_and_frozen_hidden_states_get_no_gradient():
    hidden, head, target = problem()
    head.weight.requires_grad_(False)
    head.bias.requires_grad_(False)
    chunked_logprobs(hidden, head, target)[0].sum().backward()
    assert hidden.grad is not None
    assert head.weight.grad is None
    logprobs, entropy = chunked_logprobs(hidden.detach(), head, target)
    assert not logprobs.requires_grad
    assert not entropy.requires_grad


def test_entropy_is_detached_and_can_be_left_out():
    hidden, head, target = problem()
    with_it, entropy = chunked_logprobs(hidden, head, target)
    assert not entropy.requires_grad
    without, none = chunked_logprobs(hidden, head, target, with_entropy=False)
    assert none is None
    torch.testing.assert_close(with_it, without, rtol=1e-14, atol=1e-14)


def test_log_probs_are_those_of_sampling_at_each_tokens_temperature():
    """Frequencies of sampled tokens against exp(log-prob), one temperature per token."""
    hidden, head, _ = problem(2, 5, 3)
    temperature = torch.tensor([0.5, 1.7], dtype=torch.float64)
    probabilities = torch.softmax(head.logits(hidden) / temperature[:, None], -1)
    torch.manual_seed(0)
    sampled = torch.multinomial(probabilities, 40_000, replacement=True)
    for word in range(5):
        target = torch.full((2,), word)
        expected = chunked_logprobs(hidden, head, target, temperature)[0].exp()
        torch.testing.assert_close(
            (sampled == word).double().mean(1), expected, rtol=0, atol=0.0125
        )  # 5 standard deviations


# --- safety ---


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_hidden_state_spoils_its_own_token_only(bad):
    hidden, head, target = problem()
    spoilt = hidden.detach().clone()
    spoilt[4, 2] = bad
    logprobs, entropy = chunked_logprobs(spoilt, head, target, chunk=(4, 10))
    clean = chunked_logprobs(hidden, head, target, chunk=(4, 10))
    others = [i for i in range(13) if i != 4]
    assert logprobs[4].isnan()
    assert entropy[4].isnan()
    assert torch.equal(logprobs[others], clean[0][others])
    assert torch.equal(entropy[others], clean[1][others])


@pytest.mark.parametrize("keep", [0, 10**9])
def test_a_masked_bad_token_leaves_every_gradient_as_if_it_were_not_there(keep):
    hidden, head, target = problem()
    spoilt = hidden.detach().clone()
    spoilt[4] = float("nan")
    spoilt.requires_grad_()
    mask = torch.ones(13, dtype=torch.float64)
    mask[4] = 0
    logprobs = chunked_logprobs(spoilt, head, target, chunk=(4, 10), keep=keep)[0]
    safe = torch.where(mask.bool(), logprobs, 0.0)
    grads = gradients(safe, spoilt, head, mask)
    expected = gradients(chunked_logprobs(hidden, head, target)[0], hidden, head, mask)
    for a, b in zip(grads, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_words_that_cannot_be_said_have_no_probability_and_no_nan():
    """A bias of −inf on more words than a block holds, at either end of the vocabulary."""
    hidden, head, target = problem(6, 30, 3)
    with torch.no_grad():
        head.bias[:12] = float("-inf")
        head.bias[25:] = float("-inf")
    target = torch.tensor([12, 13, 20, 24, 15, 3])
    logprobs, entropy = chunked_logprobs(hidden, head, target, chunk=(4, 5))
    expected = torch.log_softmax(head.logits(hidden)[:, 12:25], -1)
    torch.testing.assert_close(logprobs[:5], expected[range(5), target[:5] - 12])
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(-1))
    assert logprobs[5] == float("-inf")
    weighed = gradients(logprobs, hidden, head, torch.tensor([1.0, 1, 1, 1, 1, 0]).double())
    assert all(g.isfinite().all() for g in weighed)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_very_large_logits_stay_finite(size):
    weight = torch.tensor([[1.0], [0.5], [-1.0]]) * size
    hidden = torch.ones(2, 1, requires_grad=True)
    head = Head(linear(weight))
    logprobs, entropy = chunked_logprobs(hidden, head, torch.tensor([0, 1]), chunk=(1, 1))
    torch.testing.assert_close(logprobs.detach(), torch.tensor([0.0, -0.5 * size]))
    assert torch.equal(entropy, torch.zeros(2))
    assert all(g.isfinite().all() for g in gradients(logprobs, hidden, head, torch.ones(2)))


def test_no_tokens_give_an_empty_result_with_a_graph():
    hidden, head, target = problem(0, 11, 3)
    logprobs, entropy = chunked_logprobs(hidden, head, target)
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert hidden.grad.shape == (0, 3)
    assert torch.equal(head.weight.grad, torch.zeros(11, 3, dtype=torch.float64))
    assert torch.equal(head.bias.grad, torch.zeros(11, dtype=torch.float64))


@pytest.mark.parametrize("word", [-100, 37])
def test_a_target_outside_the_vocabulary_is_refused(word):
    hidden, head, target = problem()
    target[3] = word
    with pytest.raises(InputError, match="vocabulary of 37: drop padding"):
        chunked_logprobs(hidden, head, target)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("each", [False, True])
def test_a_temperature_that_is_not_positive_and_finite_is_refused(temperature, each):
    hidden, head, target = problem()
    given = torch.full((13,), temperature) if each else temperature
    with pytest.raises(InputError, match="not above 0 and finite"):
        chunked_logprobs(hidden, head, target, given)
    with pytest.raises(InputError, match="not above 0 and finite"):
        plain_logprobs(head.logits(hidden), target, given)


def test_shapes_that_do_not_fit_are_refused():
    hidden, head, target = problem()
    with pytest.raises(InputError, match="head of width 5"):
        chunked_logprobs(hidden[:, :4], head, target)
    with pytest.raises(InputError, match="one int64 token id per hidden state"):
        chunked_logprobs(hidden, head, target[:-1])
    with pytest.raises(InputError, match="one int64 token id per hidden state"):
        chunked_logprobs(hidden, head, target.int())
    with pytest.raises(InputError, match="one per token"):
        chunked_logprobs(hidden, head, target, torch.ones(12))
    with pytest.raises(InputError, match="both at least 1"):
        chunked_logprobs(hidden, head, target, chunk=(0, 5))


def test_weights_changed_between_forward_and_backward_are_refused():
    """Else the gradient would be of other weights than the log-probs."""
    hidden, head, target = problem()
    logprobs = chunked_logprobs(hidden, head, target)[0]
    with torch.no_grad():
        head.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logprobs.sum().backward()


@pytest.mark.parametrize("keep", [0, 10**9])
def test_a_second_backward_pass_gives_the_same_gradient(keep):
    hidden, head, target = problem()
    logprobs = chunked_logprobs(hidden, head, target, keep=keep)[0].sum()
    once = torch.autograd.grad(logprobs, [hidden, head.weight], retain_graph=True)
    twice = torch.autograd.grad(logprobs, [hidden, head.weight])
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


# --- memory ---


def kept_bytes(logprobs):
    return sum(weights.nbytes for weights, _ in logprobs.grad_fn.kept.values())


def test_no_more_is_kept_for_the_backward_pass_than_allowed():
    hidden, head, target = problem(20, 40, 3)  # 6400 bytes of logits in blocks of 5 × 10 × 8
    for keep, expected in [(0, 0), (399, 0), (400, 400), (1000, 800), (10**9, 6400)]:
        logprobs, _ = chunked_logprobs(hidden, head, target, chunk=(5, 10), keep=keep)
        assert kept_bytes(logprobs) == expected


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation made."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_operation_makes_anything_larger_than_a_block_or_a_gradient(dtype):
    hidden, head, target = problem(200, 300, 6, dtype=dtype)
    with Largest() as seen:
        chunked_logprobs(hidden, head, target, 0.9, chunk=(20, 100), keep=0)[0].sum().backward()
    assert seen.numel == 20 * 100  # hidden states are 200 × 6, the weight 300 × 6
    with Largest() as seen:
        plain_logprobs(head.logits(hidden), target, 0.9)
    assert seen.numel == 200 * 300


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_at_8k_tokens_and_150k_words_is_below_a_tenth_of_the_matrix():
    """Forward and backward, measured as the peak of a process of its own; gradients included."""
    code = """
import json, pathlib, resource, torch
from scalerl.algorithm.logits import Head, chunked_logprobs
torch.set_num_threads(1)
N, V, D = 8192, 151_936, 16
warm = Head(torch.nn.Linear(D, 4096))
chunked_logprobs(torch.randn(64, D), warm, torch.zeros(64, dtype=torch.int64))[0].sum().backward()
module, hidden = torch.nn.Linear(D, V, bias=False), torch.randn(N, D, requires_grad=True)
target = torch.randint(V, (N,))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
logprobs, _ = chunked_logprobs(hidden, Head(module), target)
forward = peak()
logprobs.sum().backward()
print(json.dumps([(x - before) / (4 * N * V) for x in (forward, peak())]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    forward, whole = json.loads(run.stdout)
    assert forward <= whole < 0.1
