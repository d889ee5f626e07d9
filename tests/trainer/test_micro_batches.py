"""Which rows go through the model together."""

import numpy as np
import pytest

from scalerl.models.rows import PromptRows
from scalerl.trainer.micro import micro_batches


def groups(prompts=8, generations=4, longest=12, seed=0):
    rng = np.random.default_rng(seed)
    return [
        PromptRows(
            np.full(int(rng.integers(1, 7)), p),
            tuple(np.full(int(rng.integers(0, longest)), i) for i in range(generations)),
        )
        for p in range(prompts)
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_every_row_is_in_one_micro_batch_under_its_own_prompt(packed):
    whole = groups()
    flat = [(p.prompt, c) for p in whole for c in p.completions]
    seen = []
    for part in micro_batches(whole, 40, packed=packed):
        rows = [(g.prompt, c) for g in part.groups for c in g.completions]
        assert len(rows) == len(part.rows)
        for i, (prompt, completion) in zip(part.rows, rows, strict=True):
            assert prompt is flat[i][0] and completion is flat[i][1]
        seen += part.rows
    assert sorted(seen) == list(range(len(flat)))


def test_packed_rows_of_a_prompt_stay_side_by_side_within_the_budget():
    parts = micro_batches(groups(), 40, packed=True)
    assert len(parts) > 3
    for part in parts:
        tokens = sum(len(g.prompt) + sum(map(len, g.completions)) for g in part.groups)
        assert tokens <= 40
        assert len({int(g.prompt[0]) for g in part.groups}) == len(part.groups)
    # Every prompt once, and once more where a micro-batch ends within its rows.
    assert sum(len(part.groups) for part in parts) <= 8 + len(parts) - 1


def test_padded_rows_of_like_length_go_together_within_the_budget():
    parts = micro_batches(groups(prompts=25, longest=50), 200, packed=False)
    widths = [max(g.longest for g in part.groups) for part in parts]
    assert widths == sorted(widths, reverse=True)
    for part, width in zip(parts, widths, strict=True):
        assert len(part.rows) * width <= 200


@pytest.mark.parametrize("packed", [True, False])
def test_a_row_longer_than_the_budget_goes_alone(packed):
    long = PromptRows(np.zeros(5, dtype=int), (np.zeros(50, dtype=int), np.zeros(60, dtype=int)))
    assert [part.rows for part in micro_batches([long], 20, packed=packed)] in (
        [[0], [1]],
        [[1], [0]],
    )


@pytest.mark.parametrize("packed", [True, False])
def test_no_rows_make_no_micro_batch(packed):
    assert micro_batches([], 40, packed=packed) == []
