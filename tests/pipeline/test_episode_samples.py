"""Training episodes in the record: which are kept, what is said of them, and how many bytes."""

from types import SimpleNamespace

import pytest
from test_groups import RIGHT, WRONG, pending, scored
from test_loop import world
from worlds import RandomWorld

from scalerl.algorithm.episode import Episode, EpisodeFacts, TokenRow, Turn
from scalerl.pipeline.episode_samples import bytes_at, sample_episodes
from scalerl.recipe import Recipe
from scalerl.runs.lines import (
    EpisodeLine,
    EpisodePlay,
    EvalLine,
    SegmentSample,
    StepLine,
    VersionRun,
)


def setup_of(*overrides):
    """As much of a setup as samples look at."""
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: " ".join(map(str, ids)))
    return SimpleNamespace(
        recipe=Recipe.load("scalerl", "tiny", overrides=overrides), tokenizer=tokenizer
    )


def played(score=RIGHT):
    """A group of one episode of two turns, the second of which is a fork."""
    turn = Turn.from_lists(
        [5, 6, 7], logprobs=[-1.23456, -0.00001, 0.0], versions=[3, 3, 4],
        forced=[False, False, True]
    )  # fmt: skip
    first = TokenRow.from_context([1, 2]).with_turn(turn).with_turn_reward(0.25)
    second = TokenRow.from_context([1, 9]).with_turn(Turn.from_lists([8], versions=[4]))
    found = Episode((first, second), "stop", facts=EpisodeFacts(2, 1, 1, 0.5))
    p = pending(size=1, episodes=[found])
    scored(p, [score], setup_of())
    return p


def test_a_line_has_the_source_of_every_token():
    (line,) = sample_episodes(setup_of(), 7, [played()])
    assert (line.step, line.prompt, line.task, line.question) == (7, played().prompt.id, "t", "q0")
    assert (line.reward, line.correct, line.why, line.finish) == (1.0, True, "equal", "stop")
    assert line.turn_rewards == (0.25,) and line.play == EpisodePlay(2, 1, 1, 1, 0.5)
    assert line.rows == (
        (
            SegmentSample("context", 2, "1 2", (1, 2), token_lengths=(1, 2)),
            SegmentSample("policy", 2, "5 6", (5, 6), (VersionRun(3, 2),), (-1.2346, 0.0),
                          token_lengths=(1, 2)),
            SegmentSample("forced", 1, "7", (7,), (VersionRun(4, 1),), reward=0.25,
                          token_lengths=(1,)),
        ),
        (
            SegmentSample("context", 2, "1 9", (1, 9), token_lengths=(1, 2)),
            SegmentSample("policy", 1, "8", (8,), (VersionRun(4, 1),), (0.0,),
                          token_lengths=(1,)),
        ),
    )  # fmt: skip


def test_after_a_resume_the_reason_is_not_known():
    p = played()
    p.scores = {}
    assert sample_episodes(setup_of(), 1, [p])[0].why == ""


def test_episodes_are_chosen_by_a_hash_and_again_the_same():
    taken = [pending(serial=i, size=4, episodes=[played().episodes[0]] * 4) for i in range(8)]
    for p in taken:
        scored(p, [RIGHT, WRONG] * 2, setup_of())
    chosen = {step: sample_episodes(setup_of(), step, taken) for step in range(1, 9)}
    assert all(len(lines) == 4 for lines in chosen.values())
    assert chosen[1] == sample_episodes(setup_of(), 1, taken)
    whose = {step: [line.prompt for line in lines] for step, lines in chosen.items()}
    assert len({tuple(each) for each in whose.values()}) > 4, "other ones at other steps"
    assert {p for each in whose.values() for p in each} == {p.prompt.id for p in taken}
    assert {line.correct for lines in chosen.values() for line in lines} == {True, False}
    assert sample_episodes(setup_of("record.episodes_per_step=0"), 1, taken) == []


def test_the_bytes_of_a_run_approach_their_limit_and_never_reach_it():
    allowed = [bytes_at(step, 10**8) for step in (1, 100, 1000, 10_000, 10**6)]
    assert allowed == sorted(allowed) and allowed[2] == 5 * 10**7 and allowed[-1] < 10**8


@pytest.mark.parametrize("plays", [True, False])
def test_a_run_records_some_episodes_of_every_step(plays, tmp_path):
    seed = next(s for s in range(100) if RandomWorld(s).plays == plays)
    run = RandomWorld(seed, **{"record.episodes_per_step": 2})
    run.live(tmp_path / "run")
    steps = {line.step: line for line in run.store.read(StepLine)}
    lines = run.store.read(EpisodeLine)
    assert [line.step for line in lines] == [step for step in steps for _ in range(2)]
    for line in lines:
        assert line.prompt in steps[line.step].prompts
        written = [s for row in line.rows for s in row if s.source != "context"]
        # A token is at most k versions old, and older than the step that learns from it.
        ages = [line.step - 1 - v.version for s in written for v in s.versions]
        assert written and all(0 <= age <= run.k for age in ages)
        assert all(len(s.token_ids) == s.tokens == sum(v.tokens for v in s.versions)
                   for s in written)  # fmt: skip
    assert any(line.play.turns > 1 for line in lines) == plays
    assert all((line.play is not None) == plays for line in run.store.read(EvalLine))
    answers = [a for step in run.store.answered() for a in run.store.read_answers(step).answers]
    assert answers and all((a.play is not None) == plays for a in answers)
    assert any("\nenvironment: " in a.answer for a in answers) == plays


def test_a_refused_batch_is_not_recorded(tmp_path):
    run = world("twice")
    run.live(tmp_path / "run")
    steps = {line.step: set(line.prompts) for line in run.store.read(StepLine)}
    for line in run.store.read(EpisodeLine):
        assert line.prompt in steps[line.step]
