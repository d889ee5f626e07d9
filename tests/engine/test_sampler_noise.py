"""Noise on the sampler's logits: its size, its seeds, and the log-probs that are recorded."""

import pytest
import torch

from scalerl.engine.noise import QUANTILES, quantiles, with_noise
from scalerl.engine.sampling import DrawSettings, draw, draw_from_seeds, uniform
from scalerl.models.cpu.library import library


def settings(rows, noise_B=None, top_k=0):
    return DrawSettings.from_tensors(
        torch.ones(rows), torch.ones(rows), torch.full((rows,), top_k), noise_B
    )


def test_the_noise_is_standard_normal_and_independent_between_words_and_rows():
    rows, words = 400, 1000
    x = with_noise(torch.zeros(rows, words), torch.full((rows,), 2.0), torch.arange(rows),
                   torch.zeros(rows, dtype=torch.long))  # fmt: skip
    n = rows * words
    assert abs(float(x.mean())) < 2 * 4 / n**0.5
    assert float(x.std()) == pytest.approx(2.0, rel=4 / (2 * n) ** 0.5)
    assert float(((x / 2) ** 4).mean()) == pytest.approx(3.0, rel=0.02)
    z = x / 2
    for other in (z[:, 1:] * z[:, :-1], z[:, 4:] * z[:, :-4], z[1:] * z[:-1]):
        assert abs(float(other.mean())) < 5 / n**0.5
    assert len(quantiles()) == QUANTILES and float(quantiles().max()) < 4.4


def test_the_noise_of_a_row_is_its_own_and_differs_by_position():
    torch.manual_seed(0)
    logits, noise = torch.randn(3, 50), torch.tensor([0.5, 0.0, 0.5])
    seeds, positions = torch.tensor([7, 8, 7]), torch.tensor([3, 3, 4])
    together = with_noise(logits, noise, seeds, positions)
    for i in range(3):
        one = slice(i, i + 1)
        alone = with_noise(logits[one], noise[one], seeds[one], positions[one])
        assert torch.equal(alone[0], together[i])
    assert torch.equal(together[1], logits[1])
    added = together - logits
    assert not torch.allclose(added[0], added[2])


@pytest.mark.skipif(library() is None, reason="no C compiler here")
@pytest.mark.parametrize("words", [1, 7, 44, 1001])
def test_c_draws_what_torch_draws_with_noise(words):
    torch.manual_seed(0)
    rows = 200
    logits = 4 * torch.randn(rows, words)
    seeds, positions = torch.randint(-(2**62), 2**62, (rows,)), torch.randint(0, 500, (rows,))
    noise = torch.where(torch.arange(rows) % 2 == 0, 0.3, 0.0)
    token, logprob = draw_from_seeds(logits, settings(rows, noise), seeds, positions)
    noisy = with_noise(logits, noise, seeds, positions)
    expected_token, expected = draw(noisy, settings(rows), uniform(seeds, positions))
    assert token.tolist() == expected_token.tolist()
    torch.testing.assert_close(logprob, expected, atol=2e-6, rtol=1e-5)


def test_truncated_sampling_has_the_noise_too():
    torch.manual_seed(0)
    logits, noise = torch.randn(64, 20), torch.full((64,), 0.5)
    seeds, positions = torch.arange(64), torch.zeros(64, dtype=torch.long)
    found = draw_from_seeds(logits, settings(64, noise, top_k=4), seeds, positions)
    noisy = with_noise(logits, noise, seeds, positions)
    expected = draw(noisy, settings(64, top_k=4), uniform(seeds, positions))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
