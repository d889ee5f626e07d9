"""Groups under way, and how they come back from a checkpoint."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pieces import rollout

from scalerl.pipeline import groups
from scalerl.pipeline.groups import PendingGroup
from scalerl.recipe import Recipe
from scalerl.tasks.task import Answer, AnswerScore, make_prompt

IDS = np.arange(4)
PROMPTS = [make_prompt("t", f"q{i}", "a") for i in range(4)]
RIGHT, WRONG = AnswerScore(True, 1.0, "equal"), AnswerScore(False, -1.0, "not equal")


def setup_of(*overrides):
    """As much of a setup as groups look at."""
    recipe = Recipe.load("scalerl", "tiny", overrides=["batch.generations=2", *overrides])
    return SimpleNamespace(
        recipe=recipe, control="control", sampling="sampling", tokens_of=lambda prompt: IDS,
        answer=lambda prompt, ids, step: Answer(
            prompt, " ".join(map(str, ids)), tuple(ids.tolist()), step
        ),
    )  # fmt: skip


def pending(serial=0, size=2, started=0, rollouts=()):
    found = PendingGroup(serial, PROMPTS[serial % 4], IDS, size, started)
    found.rollouts = dict(enumerate(rollouts))
    return found


def test_a_group_is_written_then_checked_then_ready():
    p = pending(started=3)
    assert p.stage == "writing" and not p.age.finished and p.age.oldest == 3
    p.rollouts[1] = rollout(2, None, version=4)
    assert p.stage == "writing"
    p.rollouts[0] = rollout(3, None, version=5)
    assert p.stage == "checking" and not p.age.finished
    group = p.apply_rewards([RIGHT, WRONG], setup_of())
    assert p.stage == "ready" and p.age.finished
    assert [(len(r), r.reward) for r in group.rollouts] == [(3, 1.0), (2, -1.0)]
    assert p.age.oldest == 4  # what its tokens say, and no longer when it was begun


def test_answers_go_to_the_checkers_in_the_order_of_their_rows():
    p = pending()
    p.rollouts = {1: rollout(1), 0: rollout(3)}
    found = p.answers(setup_of(), step=7)
    assert [(a.text, a.token_ids, a.step) for a in found] == [
        ("0 1 2", (0, 1, 2), 7),
        ("0", (0,), 7),
    ]


def test_only_what_is_missing_is_asked_again_with_the_seeds_it_had():
    p, setup = pending(serial=5, size=4), setup_of()
    whole = p.request(setup)
    p.rollouts = {0: rollout(), 2: rollout()}
    rest = p.request(setup)
    assert rest.id == whole.id == "5" and len(set(whole.seeds.values())) == 4
    assert rest.seeds == {row: whole.seeds[row] for row in (1, 3)}


def test_a_group_begun_anew_is_as_old_as_the_rollouts_that_were_kept():
    p = pending(rollouts=[rollout(2, version=5)])
    p.restart_at(9)
    assert p.started == 5
    fresh = pending()
    fresh.restart_at(9)
    assert fresh.started == 9


def test_the_length_penalty_is_paid_by_right_answers_only():
    setup = setup_of("length.control=penalty", "length.penalty_max=4", "length.penalty_cache=2",
                   "length.max_tokens=10")  # fmt: skip
    p = pending(size=3, rollouts=[rollout(3), rollout(2), rollout(9)])
    group = p.apply_rewards([RIGHT, RIGHT, WRONG], setup)
    late, early, wrong = (r.reward for r in group.rollouts)
    assert late < early == 1.0 and wrong == -1.0


def test_groups_come_back_from_a_checkpoint_as_they_were(tmp_path):
    writing = pending(0, started=2, rollouts=[rollout(4)])
    checking = pending(1, started=3, rollouts=[rollout(3, None), rollout(0, None, "failed")])
    ready = pending(2, started=3, rollouts=[rollout(3, None), rollout(5, None)])
    ready.apply_rewards([RIGHT, WRONG], setup_of())
    groups.save(tmp_path, [writing, checking, ready])
    found = groups.load(tmp_path, {p.id: p for p in PROMPTS}, setup_of())
    assert list(found) == [0, 1, 2]
    assert [p.stage for p in found.values()] == ["writing", "checking", "ready"]
    assert [p.started for p in found.values()] == [2, 3, 3]
    assert found[0].rollouts == {}  # begun anew from its beginning
    kept = [*checking.rollouts.values(), *ready.group.rollouts]
    back = [*found[1].rollouts.values(), *found[2].group.rollouts]
    for a, b in zip(back, kept, strict=True):
        for name in ("token_ids", "logprobs", "versions", "forced"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype
        assert (a.finish, a.reward, a.correct) == (b.finish, b.reward, b.correct)


def test_experts_of_a_mixture_come_back_with_their_rollouts(tmp_path):
    def routed(n):
        tokens = len(IDS) + n - 1
        return replace(rollout(n, None), experts=np.arange(tokens * 6, dtype=np.int16)
                       .reshape(tokens, 3, 2) + n)  # fmt: skip

    kept = [routed(3), rollout(0, None, "failed"), routed(5), routed(1)]
    groups.save(tmp_path, [pending(0, rollouts=kept[:2]), pending(1, rollouts=kept[2:])])
    found = groups.load(tmp_path, {p.id: p for p in PROMPTS}, setup_of())
    for a, b in zip([r for p in found.values() for r in p.rollouts.values()], kept, strict=True):
        assert (a.experts is None) == (b.experts is None)
        assert b.experts is None or np.array_equal(a.experts, b.experts)


def test_rollouts_stay_with_the_prompt_tokens_that_they_were_written_for(tmp_path):
    """However the template renders the prompts by now, and however long they are."""
    kept = [pending(i, rollouts=[rollout(3, None), rollout(2, None)]) for i in range(3)]
    for i, p in enumerate(kept):
        p.token_ids = np.arange(i + 2) + 7
    groups.save(tmp_path, kept)
    assert not groups.lacks_prompts(tmp_path)
    found = groups.load(tmp_path, {p.id: p for p in PROMPTS}, setup_of())
    for a, b in zip(found.values(), kept, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.token_ids.dtype == np.int64


def test_a_checkpoint_without_prompt_tokens_is_rendered_again(tmp_path):
    groups.save(tmp_path, [pending(0, rollouts=[rollout(3, None), rollout(2, None)])])
    about = json.loads((tmp_path / "groups.json").read_text())
    for item in about:
        del item["prompt_tokens"]
    (tmp_path / "groups.json").write_text(json.dumps(about))
    with np.load(tmp_path / "groups.npz") as file:
        arrays = {name: file[name] for name in file.files if name != "prompts"}
    np.savez(tmp_path / "groups.npz", **arrays)
    assert groups.lacks_prompts(tmp_path)
    [found] = groups.load(tmp_path, {p.id: p for p in PROMPTS}, setup_of()).values()
    assert found.token_ids.tolist() == IDS.tolist() and len(found.rollouts) == 2


def test_no_groups_are_saved_as_well(tmp_path):
    groups.save(tmp_path, [])
    assert groups.load(tmp_path, {}, setup_of()) == {}


def test_verdicts_must_be_as_many_as_answers():
    with pytest.raises(ValueError, match="zip"):
        pending(rollouts=[rollout(), rollout()]).apply_rewards([RIGHT], setup_of())
