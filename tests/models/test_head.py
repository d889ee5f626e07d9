"""The head in FP32 for every kind of model, following its live weights."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scalerl.errors import InputError  # noqa: E402
from scalerl.models.head import (  # noqa: E402
    HeadLinear,
    final_hidden,
    head_of,
    project,
    use_head_precision,
)
from scalerl.models.logprobs import chunked_logprobs  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_onednn")

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


# --- the head of a model ---


@pytest.mark.parametrize("name", MODELS)
def test_head_of_final_hidden_gives_the_models_own_logits(name):
    model = build(name)
    mask = torch.ones(3, 7, dtype=torch.int64)
    mask[0, :2] = 0  # left padding
    theirs = model(ids(), attention_mask=mask).logits[mask.bool()]
    ours = head_of(model, "fp32").logits(final_hidden(model, ids(), mask))[mask.bool()]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_softcap_and_scale_are_found_not_lost_in_small_logits():
    assert head_of(build("gemma2"), "fp32").softcap == 0.5
    assert head_of(build("granite"), "fp32").scale == 1 / 7
    assert head_of(build("cohere"), "fp32").scale == 0.25
    assert head_of(build("phi (bias)"), "fp32").bias is not None


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
    fp32 = head_of(model, "fp32").logits(hidden)
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
        head_of(body, "fp32")
    assert "\n" not in str(problem.value)
    with pytest.raises(InputError, match="has no linear LM head"):
        head_of(torch.nn.Linear(2, 2), "fp32")
    with pytest.raises(InputError, match="no body apart from its head"):
        final_hidden(torch.nn.Linear(2, 2), ids())


def test_a_model_that_does_something_unknown_around_its_head_is_refused():
    class Unknown(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 1.01
            return output

    with pytest.raises(InputError, match="not those of its linear head"):
        head_of(Unknown(transformers.LlamaConfig(**SMALL)), "fp32")


def test_looking_for_the_head_leaves_the_model_in_its_mode():
    model = build("llama").train()
    model.model.layers[0].eval()
    head_of(model, "fp32")
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
    loss(model, head_of(model, "fp32")).backward()
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
    chunked_logprobs(hidden, head_of(model, "fp32"), targets)[0].sum().backward()
    assert (model.get_input_embeddings().weight.grad is not None) == tied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_the_head_uses_the_new_weights_after_an_optimiser_step(name, dtype):
    model = build(name, dtype)
    head = head_of(model, "fp32")
    before = head.logits(torch.ones(1, 16))
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    loss(model, head).backward()
    optimiser.step()
    after = head.logits(torch.ones(1, 16))
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(
        after, head_of(model, "fp32").logits(torch.ones(1, 16)), rtol=0, atol=0
    )


@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("name", ["llama", "llama-tied"])
def test_the_head_uses_the_new_weights_after_a_load(name, assign):
    model, other = build(name, seed=0), build(name, seed=1)
    head = head_of(model, "fp32")
    model.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
    model.tie_weights()
    hidden = final_hidden(other, ids())
    torch.testing.assert_close(
        head.logits(hidden), head_of(other, "fp32").logits(hidden), rtol=0, atol=0
    )


# --- the model with a head precision of its own ---


@pytest.mark.parametrize("name", MODELS)
def test_a_model_given_an_fp32_head_computes_the_same_logits_as_ours(name):
    model = build(name, torch.bfloat16)
    ours = head_of(model, "fp32").logits(final_hidden(model, ids()))
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
