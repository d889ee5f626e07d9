"""Groups under way, and how they come back from a checkpoint."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pieces import episode

from scalerl.algorithm.episode import EpisodeFacts, TokenRow
from scalerl.algorithm.length import Limit
from scalerl.engine.interface import Sampling
from scalerl.pipeline import groups
from scalerl.pipeline.groups import PendingGroup, Writing
from scalerl.recipe import Recipe
from scalerl.tasks.task import Answer, AnswerScore, make_prompt

IDS = np.arange(4)
PROMPTS = [make_prompt("t", f"q{i}", "a") for i in range(4)]
RIGHT, WRONG = AnswerScore(True, 1.0, "equal"), AnswerScore(False, -1.0, "not equal")


def setup_of(*overrides):
    """As much of a setup as groups look at."""
    recipe = Recipe.load("scalerl", "tiny", overrides=["batch.generations=2", *overrides])
    return SimpleNamespace(
        recipe=recipe, tokens_of=lambda prompt: IDS, plays=lambda prompt: False,
        answer=lambda prompt, ids, step: Answer(
            prompt, " ".join(map(str, ids)), tuple(ids.tolist()), step
        ),
    )  # fmt: skip


def how(serial=0):
    return Writing("train", Limit(9), Sampling(), (0, "rollout", serial))


def pending(serial=0, size=2, started=0, episodes=()):
    found = PendingGroup(str(serial), PROMPTS[serial % 4], size, how(serial), IDS, started)
    found.episodes = dict(enumerate(episodes))
    return found


def scored(p, scores, setup):
    p.scores = dict(enumerate(scores))
    return p.apply_scores(setup)


def load(path, setup=None):
    return groups.load(path, {p.id: p for p in PROMPTS}, setup or setup_of(), how)


def test_a_group_is_written_then_checked_then_ready():
    p = pending(started=3)
    assert p.stage == "writing" and not p.age.finished and p.age.oldest == 3
    p.episodes[1] = episode(2, None, version=4)
    assert p.stage == "writing"
    p.episodes[0] = episode(3, None, version=5)
    assert p.stage == "checking" and not p.age.finished
    group = scored(p, [RIGHT, WRONG], setup_of())
    assert p.stage == "ready" and p.age.finished
    assert [(len(e), e.reward) for e in group.episodes] == [(3, 1.0), (2, -1.0)]
    assert p.age.oldest == 4  # what its tokens say, and no longer when it was begun


def test_answers_go_to_the_checkers_in_the_order_of_their_rows():
    p = pending()
    p.episodes = {1: episode(1), 0: episode(3)}
    found = p.answers(setup_of(), step=7)
    assert [(a.text, a.token_ids, a.step) for a in found] == [
        ("0 1 2", (0, 1, 2), 7),
        ("0", (0,), 7),
    ]


def test_only_what_is_missing_is_asked_again_with_the_seeds_it_had():
    p = pending(serial=5, size=4)
    whole = p.request()
    p.episodes = {0: episode(), 2: episode()}
    rest = p.request()
    assert rest.id == whole.id == "5" and len(set(whole.seeds.values())) == 4
    assert rest.seeds == {row: whole.seeds[row] for row in (1, 3)}


def test_every_turn_of_an_episode_has_a_seed_of_its_own():
    seeds = [how(s).seed(row, turn) for s in range(3) for row in range(3) for turn in range(4)]
    assert len(set(seeds)) == len(seeds)
    assert how(0).environment_seed != how(1).environment_seed


def test_a_group_begun_anew_is_as_old_as_the_rollouts_that_were_kept():
    p = pending(episodes=[episode(2, version=5)])
    p.restart_at(9)
    assert p.started == 5
    fresh = pending()
    fresh.restart_at(9)
    assert fresh.started == 9


def test_the_length_penalty_is_paid_by_right_answers_only():
    setup = setup_of("length.control=penalty", "length.penalty_max=4", "length.penalty_cache=2",
                   "length.max_tokens=10")  # fmt: skip
    p = pending(size=3, episodes=[episode(3), episode(2), episode(9)])
    group = scored(p, [RIGHT, RIGHT, WRONG], setup)
    late, early, wrong = (e.reward for e in group.episodes)
    assert late < early == 1.0 and wrong == -1.0


def same(a, b):
    for mine, other in zip(a.rows, b.rows, strict=True):
        for name in ("token_ids", "logprobs"):
            assert np.array_equal(getattr(mine, name), getattr(other, name))
            assert getattr(mine, name).dtype == getattr(other, name).dtype
        assert mine.segments == other.segments
    assert (a.finish, a.reward, a.correct, a.facts) == (b.finish, b.reward, b.correct, b.facts)


def test_groups_come_back_from_a_checkpoint_as_they_were(tmp_path):
    writing = pending(0, started=2, episodes=[episode(4)])
    checking = pending(1, started=3, episodes=[episode(3, None), episode(0, None, "failed")])
    ready = pending(2, started=3, episodes=[episode(3, None), episode(5, None)])
    scored(ready, [RIGHT, WRONG], setup_of())
    groups.save(tmp_path, [writing, checking, ready])
    found = load(tmp_path)
    assert list(found) == ["0", "1", "2"]
    assert [p.stage for p in found.values()] == ["writing", "checking", "ready"]
    assert [p.started for p in found.values()] == [2, 3, 3]
    assert found["0"].episodes == {}  # begun anew from its beginning
    kept = [*checking.episodes.values(), *ready.group.episodes]
    back = [*found["1"].episodes.values(), *found["2"].group.episodes]
    for a, b in zip(back, kept, strict=True):
        same(a, b)


def test_episodes_of_several_turns_and_rows_come_back(tmp_path):
    first = episode(3, 0.5)
    row = first.rows[0].with_turn_reward(0.25).with_context([5, 6])
    fork = TokenRow.from_context([9]).with_context([1])
    played = replace(first, rows=(row, fork), facts=EpisodeFacts(2, 3, 1, 0.5))
    ready = pending(1, episodes=[played, episode(2)])
    scored(ready, [RIGHT, WRONG], setup_of())
    groups.save(tmp_path, [ready])
    for a, b in zip(load(tmp_path)["1"].group.episodes, ready.group.episodes, strict=True):
        same(a, b)


def test_experts_of_a_mixture_come_back_with_their_rollouts(tmp_path):
    def routed(n):
        tokens = len(IDS) + n - 1
        return replace(episode(n, None), experts=np.arange(tokens * 6, dtype=np.int16)
                       .reshape(tokens, 3, 2) + n)  # fmt: skip

    kept = [routed(3), episode(0, None, "failed"), routed(5), routed(1)]
    groups.save(tmp_path, [pending(0, episodes=kept[:2]), pending(1, episodes=kept[2:])])
    back = [e for p in load(tmp_path).values() for e in p.episodes.values()]
    for a, b in zip(back, kept, strict=True):
        assert (a.experts is None) == (b.experts is None)
        assert b.experts is None or np.array_equal(a.experts, b.experts)


def test_rollouts_stay_with_the_prompt_tokens_that_they_were_written_for(tmp_path):
    """However the template renders the prompts by now, and however long they are."""
    kept = [pending(i, episodes=[episode(3, None), episode(2, None)]) for i in range(3)]
    for i, p in enumerate(kept):
        p.token_ids = np.arange(i + 2) + 7
    groups.save(tmp_path, kept)
    for a, b in zip(load(tmp_path).values(), kept, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.token_ids.dtype == np.int64


@pytest.mark.parametrize("with_prompts", [True, False])
def test_a_checkpoint_of_version_0_2_is_read(tmp_path, with_prompts):
    """It held prompts apart and one completion for each rollout, and at first no prompt tokens."""
    item = {"serial": 0, "prompt": PROMPTS[0].id, "started": 2, "checked": True,
            "rollouts": [[3, "stop", 1.0, True], [2, "length", -1.0, False]]}  # fmt: skip
    arrays = {"token_ids": np.arange(5), "logprobs": np.zeros(5, np.float32),
              "versions": np.full(5, 4), "forced": np.array([0, 0, 1, 0, 0], bool)}  # fmt: skip
    if with_prompts:
        item["prompt_tokens"], arrays["prompts"] = 2, np.array([8, 9])
    (tmp_path / "groups.json").write_text(json.dumps([item]))
    np.savez(tmp_path / "groups.npz", **arrays)
    assert groups.lacks_prompts(tmp_path) is not with_prompts
    (p,) = load(tmp_path).values()
    assert p.token_ids.tolist() == ([8, 9] if with_prompts else IDS.tolist())
    first, second = p.group.episodes
    assert first.completion.tolist() == [0, 1, 2] and second.truncated
    assert first.rows[0].policy_N.tolist()[-3:] == [True, True, False]
    assert (first.reward, second.correct, p.age.oldest) == (1.0, False, 4)


def test_no_groups_are_saved_as_well(tmp_path):
    groups.save(tmp_path, [])
    assert load(tmp_path) == {}


def test_verdicts_must_be_as_many_as_answers():
    with pytest.raises(ValueError, match="zip"):
        scored(pending(episodes=[episode(), episode()]), [RIGHT], setup_of())
