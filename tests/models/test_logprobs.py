"""Log-probs that never see tokens × vocabulary."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from scalerl.errors import InputError  # noqa: E402
from scalerl.models.head import Head  # noqa: E402
from scalerl.models.logprobs import chunked_logprobs, plain_logprobs  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_onednn")


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
    return hidden, Head(linear(weight, offset), **{"precision": "fp32"} | head), target


def gradients(logprobs, hidden, head, upstream):
    for tensor in (hidden, head.weight, head.bias):
        if tensor is not None:
            tensor.grad = None
    (logprobs * upstream).sum().backward()
    return [t.grad.clone() for t in (hidden, head.weight, head.bias) if t is not None]


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
        live = Head(_Holder(weight, bias), "fp32", head.scale, head.softcap)
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
    head = Head(linear(weight), "fp32")
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
from scalerl.models.head import Head
from scalerl.models.logprobs import chunked_logprobs
torch.set_num_threads(1)
N, V, D = 8192, 151_936, 16
warm = Head(torch.nn.Linear(D, 4096), "fp32")
chunked_logprobs(torch.randn(64, D), warm, torch.zeros(64, dtype=torch.int64))[0].sum().backward()
module, hidden = torch.nn.Linear(D, V, bias=False), torch.randn(N, D, requires_grad=True)
target = torch.randint(V, (N,))
# Not ru_maxrss: a process inherits that of the one that started it.
pathlib.Path("/proc/self/clear_refs").write_text("5")
def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
before = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
logprobs, _ = chunked_logprobs(hidden, Head(module, "fp32"), target)
forward = peak()
logprobs.sum().backward()
print(json.dumps([(x - before) / (4 * N * V) for x in (forward, peak())]))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=3600
    )
    forward, whole = json.loads(run.stdout)
    assert forward <= whole < 0.1
