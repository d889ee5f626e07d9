"""Thinking is interrupted at its budget, answers end at theirs, and long answers pay Eq. 9."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.algorithm.length import (
    Continue,
    EndOfThought,
    Finish,
    Force,
    Interruption,
    Limit,
    length_penalty,
    penalised_reward,
    thinking_budget,
)
from scalerl.algorithm.length_controls import LENGTH_CONTROLS, Vocabulary
from scalerl.errors import InputError
from scalerl.recipe import Recipe
from scalerl.recipe.length import LengthSection, OwnLength

STOP, WORD, OTHER = 0, 1, 2
#: Tokens 0 to 8, each a letter.
PIECES = [bytes([c]) for c in b"abcdefghi"]


def end_of(*ids):
    """The end of thinking that these tokens write."""
    return EndOfThought.from_text(b"".join(PIECES[i] for i in ids).decode(), PIECES)


END = end_of(7)
LONG_END = end_of(5, 6, 7)  # an end of thinking that takes three tokens
PHRASE = (3, 4, 7)
LONG_PHRASE = (3, 5, 6, 7)


def control(**changes):
    usual = {"phrase_ids": PHRASE, "end": END, "stop_ids": (STOP,)}
    usual |= {"think_min": 4, "think_max": 4, "answer_tokens": 3}
    return Interruption(**(usual | changes))


def write(control, script, seed=0, block=False):
    """A rollout of a model that would say `script` (then WORD for ever); its tokens, its forced
    flags, and why it ended. With `block`, as many tokens at a time as the control allows."""
    progress, tokens, forced = control.start(seed), [], []
    source = iter(script)
    while True:
        match control.decide(progress):
            case Finish(reason):
                return tokens, forced, reason
            case Force(ids):
                progress = progress.after(control, ids, forced=True)
                tokens += ids
                forced += [True] * len(ids)
            case Continue(room):
                new = []
                for _ in range(room if block else 1):
                    new.append(next(source, WORD))
                    if new[-1] in control.stop_ids:
                        break
                progress = progress.after(control, new)
                tokens += new
                forced += [False] * len(new)


# --- forced interruption, by hand ---


def test_thinking_past_its_budget_is_interrupted_and_an_answer_granted():
    tokens, forced, reason = write(control(), [1, 1, 1, 1, 2, 2, STOP])
    assert tokens == [1, 1, 1, 1, *PHRASE, 2, 2, STOP]
    assert forced == [False] * 4 + [True] * 3 + [False] * 3
    assert reason == "interrupted"


def test_an_interrupted_answer_that_runs_out_is_truncated():
    tokens, forced, reason = write(control(), [])
    assert tokens == [1, 1, 1, 1, *PHRASE, 1, 1, 1]
    assert sum(forced) == 3
    assert reason == "length"


def test_thinking_that_ends_by_itself_is_not_interrupted():
    tokens, forced, reason = write(control(), [1, 1, 7, 2, STOP])
    assert (tokens, reason) == ([1, 1, 7, 2, STOP], "stop")
    assert not any(forced)


def test_after_thinking_ended_by_itself_only_the_answer_budget_is_left():
    """The unused thinking budget (here 3 of 4) is not carried over into the answer."""
    tokens, _, reason = write(control(), [7])
    assert (tokens, reason) == ([7, 1, 1, 1], "length")


def test_an_end_of_thinking_on_the_last_thinking_token_counts():
    tokens, forced, _ = write(control(), [1, 1, 1, 7])
    assert tokens == [1, 1, 1, 7, 1, 1, 1]
    assert not any(forced)


def test_a_model_that_stops_while_thinking_has_stopped():
    assert write(control(), [1, STOP]) == ([1, STOP], [False, False], "stop")


def test_a_stop_on_the_last_thinking_token_comes_before_the_phrase():
    assert write(control(), [1, 1, 1, STOP])[2] == "stop"


def test_a_stop_on_the_last_answer_token_is_no_truncation():
    assert write(control(), [7, 2, 2, STOP])[2] == "stop"


def test_a_second_end_of_thinking_grants_nothing_more():
    tokens, _, reason = write(control(), [7, 1, 7])
    assert (tokens, reason) == ([7, 1, 7, 1], "length")


def test_a_phrase_that_does_not_close_the_thought_is_refused():
    for phrase, end in (((), END), ((3, 4), END), ((5, 6), LONG_END), ((5, 3, 6, 7), LONG_END)):
        with pytest.raises(InputError, match="does not close the thought") as problem:
            control(phrase_ids=phrase, end=end)
        assert "\n" not in str(problem.value)
        assert end.text in str(problem.value)


def test_tokens_of_the_phrase_after_its_end_of_thinking_do_not_use_up_the_answer():
    tokens, forced, _ = write(control(phrase_ids=(7, 3, 4, 3, 4)), [])
    assert forced.count(False) == 4 + 3
    assert len(tokens) == 4 + 5 + 3


def test_a_stop_token_inside_the_phrase_does_not_end_the_rollout():
    _, _, reason = write(control(phrase_ids=(3, STOP, 7)), [])
    assert reason == "length"


# --- an end of thinking of several tokens ---


def test_an_end_of_thinking_of_several_tokens_is_seen():
    tokens, forced, _ = write(control(end=LONG_END, phrase_ids=LONG_PHRASE), [5, 6, 7])
    assert tokens == [5, 6, 7, 1, 1, 1]
    assert not any(forced)


def test_parts_of_an_end_of_thinking_do_not_count():
    tokens, _, _ = write(control(end=LONG_END, phrase_ids=LONG_PHRASE), [5, 7, 6, 7])
    assert tokens == [5, 7, 6, 7, *LONG_PHRASE, 1, 1, 1]


def test_an_end_of_thinking_cut_by_the_budget_may_be_completed():
    tokens, forced, _ = write(control(end=LONG_END, phrase_ids=LONG_PHRASE), [1, 1, 5, 6, 7, 2])
    assert tokens == [1, 1, 5, 6, 7, 2, 1, 1]
    assert not any(forced)


def test_an_end_of_thinking_begun_at_the_budget_and_broken_off_is_interrupted():
    tokens, _, _ = write(control(end=LONG_END, phrase_ids=LONG_PHRASE), [1, 1, 5, 6, 1])
    assert tokens == [1, 1, 5, 6, 1, *LONG_PHRASE, 1, 1, 1]


def test_an_end_that_overlaps_itself_cannot_put_off_the_interruption():
    tokens, forced, _ = write(control(end=end_of(5, 5, 6), phrase_ids=(5, 5, 6)), [5] * 50)
    assert forced.index(True) == 4 + 2
    assert len(tokens) <= control(end=end_of(5, 5, 6), phrase_ids=(5, 5, 6)).max_tokens


def test_an_end_that_overlaps_itself_is_seen_where_it_is():
    tokens, forced, _ = write(control(end=end_of(5, 5, 6), phrase_ids=(5, 5, 6)), [5, 5, 5, 6])
    assert tokens == [5, 5, 5, 6, 1, 1, 1]
    assert not any(forced)


# --- zero budgets ---


def test_no_thinking_budget_forces_the_phrase_at_once():
    tokens, forced, _ = write(control(think_min=0, think_max=0), [])
    assert tokens == [*PHRASE, 1, 1, 1]
    assert forced == [True] * 3 + [False] * 3


def test_no_answer_budget_ends_after_the_end_of_thinking():
    nothing = control(answer_tokens=0)
    assert write(nothing, [1, 7]) == ([1, 7], [False, False], "length")
    assert write(nothing, [])[0] == [1, 1, 1, 1, *PHRASE]


def test_no_budgets_at_all_leave_only_the_phrase():
    nothing = control(think_min=0, think_max=0, answer_tokens=0)
    assert write(nothing, []) == ([*PHRASE], [True] * 3, "length")


# --- in general ---

tokens = st.integers(0, 8)
controls = st.builds(
    lambda end, phrase, low, more, answer: Interruption(
        (*phrase, *end), end_of(*end), low, low + more, answer, (STOP,)
    ),
    st.lists(st.integers(5, 7), min_size=1, max_size=4),
    st.lists(tokens, max_size=4),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 6),
)


@settings(max_examples=300, deadline=None)
@given(controls, st.lists(st.integers(0, 7), max_size=30), st.integers(0, 20))
def test_every_rollout_keeps_to_the_rules(control, script, seed):
    written, forced, reason = write(control, script, seed)
    budget = control.start(seed).budget
    end = tuple(PIECES.index(bytes([c])) for c in control.end.text.encode())
    size = len(end)
    assert len(written) <= control.max_tokens
    assert sum(forced) in (0, len(control.phrase_ids)), "the phrase comes once and whole"
    ends = [i for i in range(size, len(written) + 1) if tuple(written[i - size : i]) == end]
    if any(forced):
        at = forced.index(True)
        assert tuple(written[at : at + sum(forced)]) == control.phrase_ids
        assert budget <= at < budget + size
        assert not [i for i in ends if i <= at], "nobody is interrupted after thinking ended"
        answer = len(written) - at - sum(forced)
    elif ends:
        answer = len(written) - ends[0]
        assert ends[0] < budget + size
    else:
        answer = 0
        assert reason == "stop"
        assert len(written) < budget + size
    assert answer <= control.answer_tokens
    sampled_stop = written[-1:] == [STOP] and not forced[-1]
    assert reason == ("length" if not sampled_stop else "interrupted" if any(forced) else "stop")
    assert reason != "length" or answer == control.answer_tokens


@settings(max_examples=200, deadline=None)
@given(controls, st.lists(st.integers(0, 7), max_size=30), st.integers(0, 20))
def test_an_engine_that_samples_in_blocks_writes_the_same(control, script, seed):
    assert write(control, script, seed, block=True) == write(control, script, seed)


def test_tokens_after_a_stop_token_are_refused():
    with pytest.raises(InputError, match="after its stop token"):
        control().start(0).after(control(), [STOP, WORD])


# --- the budget ---


def test_budgets_are_uniform_over_the_range_both_ends_included():
    drawn = Counter(thinking_budget(seed, 10, 14) for seed in range(5000))
    assert sorted(drawn) == [10, 11, 12, 13, 14]
    assert all(abs(n - 1000) < 145 for n in drawn.values())  # 5 standard deviations of 28


@given(st.integers(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_seed_alone_decides_the_budget(seed, low, more):
    budget = thinking_budget(seed, low, low + more)
    assert low <= budget <= low + more
    assert budget == thinking_budget(seed, low, low + more)


def test_the_papers_budgets_fit_its_sequence():
    """12,288 of thinking and 2,048 of solution beside a prompt of 2,048 (section 3.12)."""
    length = Recipe.load("scalerl").length
    paper = Interruption(
        PHRASE, END, length.think_tokens_min, length.think_tokens_max, length.answer_tokens
    )
    assert paper.max_tokens - len(PHRASE) == length.longest == 14_336
    assert paper.think_min == 10_240


@pytest.mark.parametrize(
    "wrong",
    [
        {"phrase_ids": ()},
        {"think_min": 5},
        {"think_min": -1},
        {"answer_tokens": -1},
    ],
)
def test_impossible_controls_are_refused(wrong):
    with pytest.raises(InputError):
        control(**wrong)


# --- the plain limit ---


def test_a_plain_limit_cuts_off_and_forces_nothing():
    assert write(Limit(3), []) == ([1, 1, 1], [False] * 3, "length")
    assert write(Limit(3, stop_ids=(STOP,)), [1, 1, STOP])[2] == "stop"
    assert write(Limit(0), []) == ([], [], "length")
    with pytest.raises(InputError):
        Limit(-1)


# --- Eq. 9 ---


@pytest.mark.parametrize(
    ("n_tokens", "expected"),
    [(0, 0.0), (12_000, 0.0), (12_500, -0.25), (13_000, -0.5), (14_000, -1.0), (99_999, -1.0)],
)
def test_length_penalty_falls_from_zero_at_12k_to_minus_one_at_14k(n_tokens, expected):
    assert length_penalty(n_tokens, l_max=14_000, l_cache=2_000) == expected


@given(st.integers(0, 10**5), st.integers(0, 10**5))
def test_a_longer_answer_never_pays_less(a, b):
    longer, shorter = (length_penalty(n, 14_336, 2_048) for n in (max(a, b), min(a, b)))
    assert -1 <= longer <= shorter <= 0


def test_only_correct_answers_pay():
    assert penalised_reward(1.0, True, 13_000, 14_000, 2_000) == 0.5
    assert penalised_reward(-1.0, False, 13_000, 14_000, 2_000) == -1.0


def test_a_penalty_over_no_tokens_is_refused():
    with pytest.raises(InputError, match="l_cache=0"):
        length_penalty(10, 10, 0)


# -- by name --------------------------------------------------------------------------------------


def short(vocabulary, *, max_tokens, half):
    """A control of a user."""
    return Limit(max_tokens // 2 if half else max_tokens, vocabulary.stop_ids)


def test_controls_are_found_by_name_and_path_and_made_from_their_section():
    pieces = [b"", b"a", b"</think>"]
    vocabulary = Vocabulary(lambda text: [1, 2], lambda: pieces, "</think>", (0,))
    sections = {
        "interruption": {},
        "penalty": {"max_tokens": 50, "penalty_max": 40, "penalty_cache": 10},
        "none": {"max_tokens": 60},
    }
    assert set(sections) == set(LENGTH_CONTROLS) == set(LengthSection.types)
    made = {
        name: LENGTH_CONTROLS[name](vocabulary, **LengthSection.types[name](**given).constants)
        for name, given in sections.items()
    }
    assert made["penalty"] == Limit(50, (0,)) and made["none"] == Limit(60, (0,))
    found = made["interruption"]
    assert (found.phrase_ids, found.think_min, found.think_max) == ((1, 2), 10_240, 12_288)
    section = OwnLength(control=f"{__name__}:short", max_tokens=6, half=True)
    mine = LENGTH_CONTROLS[section.control](vocabulary, **section.constants)
    assert mine == Limit(3, (0,))
