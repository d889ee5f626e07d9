"""Drawing in C: what torch draws, from the same random numbers."""

import pytest
import torch

from scalerl.engine.sampling import DrawSettings, NonFiniteLogits, draw, draw_from_seeds, uniform
from scalerl.models.cpu.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")


def settings(temperature_B):
    n = len(temperature_B)
    return DrawSettings.from_tensors(temperature_B, torch.ones(n), torch.zeros(n, dtype=torch.long))


@pytest.mark.parametrize("words", [1, 7, 44, 1000])
def test_tokens_and_log_probs_are_those_that_torch_draws(words):
    torch.manual_seed(0)
    rows = 300
    logits = 4 * torch.randn(rows, words)
    how = settings(torch.tensor([1.0, 0.0, 0.7]).repeat(100))
    seeds, positions = torch.randint(-(2**62), 2**62, (rows,)), torch.randint(0, 5000, (rows,))
    token, logprob = draw_from_seeds(logits, how, seeds, positions)
    expected_token, expected = draw(logits, how, uniform(seeds, positions))
    assert token.tolist() == expected_token.tolist()
    torch.testing.assert_close(logprob, expected, atol=2e-6, rtol=1e-5)


def test_impossible_words_are_never_drawn():
    logits = torch.full((2000, 9), -torch.inf)
    logits[:, 3], logits[:, 8] = 0.0, 1.0
    seeds, positions = torch.arange(2000), torch.zeros(2000, dtype=torch.long)
    token, logprob = draw_from_seeds(logits, settings(torch.ones(2000)), seeds, positions)
    assert set(token.tolist()) == {3, 8}
    assert logprob.exp().unique().tolist() == pytest.approx([1 / (1 + 2.718282), 0.731059])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 5, 8])
def test_logits_that_are_not_finite_are_not_drawn_from(value, at):
    logits = torch.zeros(3, 9)
    logits[1, at] = value
    with pytest.raises(NonFiniteLogits):
        draw_from_seeds(logits, settings(torch.ones(3)), torch.arange(3), torch.arange(3))
