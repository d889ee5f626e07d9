"""The record's types: what is written comes back, and what others have written still loads."""

import dataclasses
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.runs.compute import Compute, DeviceSeconds, LedgerLine, WasteCount, Wasted
from scalerl.runs.lines import (
    AnswerSample,
    Clipping,
    EpisodeLine,
    EpisodePlay,
    EvalAnswers,
    EvalLine,
    EventLine,
    FilterCounts,
    Lengths,
    LogprobGap,
    Play,
    PromptScore,
    Ratio,
    SegmentSample,
    SetScore,
    Staleness,
    Status,
    StepLine,
    VersionRun,
)

LIVE = Path(__file__).parent.parent / "fixtures" / "live-run"
KINDS = [StepLine, EvalLine, EventLine, EpisodeLine, Status, EvalAnswers]


def step_line(step=3):
    return StepLine(
        step=step, loss=-0.1, grad_norm=0.5, lr=1e-4, forward_tokens=900, loss_tokens=600,
        micro_batches=2, seconds=0.3, tokens=600, ratio=Ratio(1.0, 1.2, 0.9, 0.01), ess=0.99,
        logprob_gap=LogprobGap(1e-3, 0.1, 1e-6), non_finite=0, entropy=0.4,
        staleness=Staleness(0.5, 2, {0: 400, 2: 200}), kl=0.02, metrics={"capped": 0.01},
        reward=-0.5, pass_rate=0.25, truncated=0.0, interrupted=0.1, mixed_versions=0.2,
        prompts=("sums/1", "sums/2"), zero_variance=0.5, length=Lengths(40.5, 69),
        filtered=FilterCounts(2, 8, 0, 0, 1, 1, 4), retired=0,
        compute=Compute(0.01, 1e9, 2000, 900, 24, step, 0.5),
        ledger=LedgerLine(step, 24, 2000, 900, device_seconds=36.0, validation_seconds=4.0,
                          spent=DeviceSeconds(15.0, 0.5, 9.0, 2.0, validate=4.0, generate_wait=2.5,
                                              train_wait=9.0, check_wait=1.0),
                          wasted=Wasted(filtered=WasteCount(4, 160))),
    )  # fmt: skip


def eval_line(step=3, downstream=None):
    return EvalLine(
        step=step, version=step, pass_rate=0.25, stderr=0.02, n_prompts=200, k=4, unscored=1,
        truncated=0.01, tasks={"sums": 0.25}, compute=Compute(0.01, steps=step),
        validation_hours=0.002, downstream=downstream,
    )  # fmt: skip


PLAY = EpisodePlay(3, 2, 1, 0, 0.5)


def episode_line(step=3, text="2<eos>"):
    given = SegmentSample("context", 2, "1+1=", (5, 6))
    written = SegmentSample(
        "policy", 2, text, (7, 1), (VersionRun(1, 1), VersionRun(2, 1)), (-0.5, 0.0), 0.1
    )
    return EpisodeLine(
        step=step, prompt="sums/1", task="sums", question="1+1=", reward=1.0, turn_rewards=(0.1,),
        correct=True, why="equal", finish="stop", play=PLAY, rows=((given, written),),
    )  # fmt: skip


FULL = [
    step_line(),
    eval_line(),
    eval_line(downstream={"aime": SetScore(0.1, None, 30, 4)}),
    dataclasses.replace(step_line(), play=Play.from_episodes([(PLAY, "turns")])),
    dataclasses.replace(
        step_line(),
        clipping=Clipping((3, 0, 9), (0.5, 0.0, 0.1)),
        far_gradient=0.2,
        gradient_chance=0.7,
        staleness=Staleness(0.5, 2, {0: 400, 2: 200}, {0: 0.1, 2: 0.3}, {0: 0.01, 2: 0.02}),
    ),
    episode_line(),
    EventLine(3, "refused", "not finite", prompts=("sums/1",)),
    EventLine(3, "resume", lost_device_seconds=2.5),
    Status(3, "2 more groups", {"main": 7}, {"trainer": 0.5}, (1,), True, (5, 6), 9, 4, 3, 1.5),
    EvalAnswers.from_answers(3, [AnswerSample("sums/1", "1+1=", "2", True, "equal", "stop")]),
]


@pytest.mark.parametrize("line", FULL, ids=lambda line: type(line).__name__)
def test_what_is_written_comes_back(line):
    assert type(line).from_dict(json.loads(json.dumps(line.to_dict()))) == line


def test_a_segment_of_no_known_source_is_left_out():
    found = episode_line().to_dict()
    for change in ({}, {"source": "me"}, {"source": None}):
        given, written = found["rows"][0]
        odd = {key: value for key, value in given.items() if key != "source"} | change
        read = EpisodeLine.from_dict(found | {"rows": [[odd, written]]})
        assert [s.source for s in read.rows[0]] == ["policy"]


def test_keys_on_disk_are_those_that_users_know():
    found = step_line().to_dict()
    assert set(found["ledger"]["spent"]) == {
        "generate", "hand_over", "train", "check", "judge", "validate", "generate_wait",
        "train_wait", "check_wait",
    }  # fmt: skip
    assert found["ledger"]["wasted"]["filtered"] == {"rollouts": 4, "tokens": 160}
    assert found["staleness"] == {"mean": 0.5, "max": 2, "histogram": {"0": 400, "2": 200}}
    assert found["compute"]["minutes"] == 0.5 and "refill" not in found["filtered"]
    assert found["entropy"] == 0.4 and found["prompts"] == ["sums/1", "sums/2"]


def test_what_does_not_apply_is_left_out_and_what_is_unknown_is_null():
    assert EventLine(7, "end", reason="enough").to_dict() == {
        "step": 7, "event": "end", "reason": "enough",
    }  # fmt: skip
    assert "downstream" not in eval_line().to_dict()
    assert dataclasses.replace(eval_line(), stderr=None).to_dict()["stderr"] is None


def test_means_of_episodes_are_of_all_of_them_once_one_has_an_environment():
    once = EpisodePlay(1, 0, 0, 0, 0.0)
    assert Play.from_episodes([(once, "stop")]) is None
    found = Play.from_episodes([(once, "stop"), (PLAY, "turns"), (PLAY, "failed"), (PLAY, "stop")])
    assert found == Play(2.5, 3, 1.5, 0.75, 0.0, 0.25, 0.25, 0.375)


def test_the_size_of_a_validation_is_prompts_times_answers():
    assert eval_line().n_eval == 800


def test_the_size_is_the_one_that_the_importer_takes(tmp_path):
    from scalerl.runs import load_run
    from scalerl.runs.store import RunStore

    lines = [eval_line(step) for step in (1, 2, 3)]
    store = RunStore(tmp_path / "run")
    for line in lines:
        store.append(dataclasses.replace(line, compute=Compute(0.1 * line.step)))
    assert load_run(tmp_path / "run").n_eval.tolist() == [line.n_eval for line in lines]


def test_lines_of_an_older_version_load():
    lines = (LIVE / "steps.jsonl").read_text().splitlines()
    found = [StepLine.from_dict(json.loads(line)) for line in lines]
    assert [line.step for line in found] == list(range(1, 41))
    last = found[-1]
    assert math.isnan(last.kl) and last.metrics == {} and last.prompts == ()
    assert last.ledger.spent.check_wait == 0.0 and last.staleness.histogram == {}
    assert last.ledger.wasted.filtered == WasteCount(rollouts=1297, tokens=0)
    assert EvalLine.from_dict({"step": 5}).downstream is None


def test_lines_of_a_later_version_load():
    found = step_line().to_dict() | {"mood": "fine"}
    found["ratio"]["median"] = 1.0
    assert StepLine.from_dict(found) == step_line()


@pytest.mark.parametrize(
    ("change", "name", "filled"),
    [
        ({"loss": None}, "loss", math.nan),
        ({"loss": "high"}, "loss", math.nan),
        ({"lr": 10**400}, "lr", math.nan),
        ({"tokens": 3.0}, "tokens", 3),
        ({"tokens": 3.5}, "tokens", 0),
        ({"tokens": True}, "tokens", 0),
        ({"entropy": "x"}, "entropy", None),
        ({"ratio": 7}, "ratio", Ratio.from_dict({})),
        ({"prompts": ["a", 3, "b"]}, "prompts", ("a", "b")),
        ({"metrics": {"a": 1, "b": "x"}}, "metrics", {"a": 1.0}),
        ({"staleness": {"histogram": {"1": 2, "x": 3, "9" * 5000: 1}}}, "staleness",
         Staleness.from_dict({"histogram": {"1": 2}})),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_as_good_as_missing(change, name, filled):
    found = getattr(StepLine.from_dict(step_line().to_dict() | change), name)
    assert repr(found) == repr(filled)  # nan is not equal to itself


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (StepLine, {}),
        (StepLine, {"step": None, "loss": 0.1}),
        (StepLine, [1, 2]),
        (EvalLine, None),
        (EventLine, {"step": 3}),
        (EventLine, {"step": 3, "event": "party"}),
        (EvalAnswers, "text"),
    ],
)
def test_without_what_makes_it_a_line_there_is_none(kind, found):
    assert kind.from_dict(found) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.randoms(use_true_random=False), JSON)
def test_damage_never_raises(rng: random.Random, garbage):
    """Anything in the place of any value, at any depth."""
    for line in FULL:
        found = line.to_dict()
        inside = found
        while True:
            key = rng.choice(list(inside))
            if not (isinstance(inside[key], dict) and inside[key] and rng.random() < 0.7):
                break
            inside = inside[key]
        inside[key] = garbage
        made = type(line).from_dict(found)
        assert made is None or type(made).from_dict(made.to_dict()) is not None


def test_every_field_of_every_type_says_what_it_means():
    seen = set()

    def check(kind):
        for each in dataclasses.fields(kind):
            assert each.metadata["meaning"], f"{kind.__name__}.{each.name}"
            seen.add(kind.__name__)

    for line in FULL:
        check(type(line))
    for kind in (Ratio, LogprobGap, Staleness, Lengths, FilterCounts, SetScore, Compute,
                 DeviceSeconds, WasteCount, Wasted, LedgerLine, AnswerSample, EpisodePlay, Play,
                 SegmentSample):  # fmt: skip
        check(kind)
    assert len(seen) == 21


def test_the_types_need_nothing_heavy():
    code = (
        "import sys, scalerl.runs.store, scalerl.runs.listener, scalerl.runs.compute\n"
        "print([m for m in ('numpy', 'torch', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "[]", done.stderr


# -- answers --------------------------------------------------------------------------------------


def answer(prompt="p", correct=True, finish="stop", text="4", where=""):
    return AnswerSample(prompt, "2+2=", text, correct, "why", finish, where)


def test_answers_are_counted_by_prompt_and_set():
    answers = [answer("a"), answer("a", False), answer("a", None, "failed"),
               answer("b", False), answer("a", where="aime")]  # fmt: skip
    found = EvalAnswers.from_answers(5, answers)
    assert found.sets == {
        "": {"a": PromptScore(1, 2, 3), "b": PromptScore(0, 1, 1)},
        "aime": {"a": PromptScore(1, 1, 1)},
    }
    assert found.to_dict()["sets"][""] == {"a": [1, 2, 3], "b": [0, 1, 1]}


def test_a_few_answers_of_each_kind_are_kept():
    many = [answer(f"p{i}", correct, finish) for i in range(5)
            for correct, finish in ((True, "stop"), (False, "length"), (True, "interrupted"),
                                    (None, "failed"))]  # fmt: skip
    kept = EvalAnswers.from_answers(5, [*many, answer("other", False, where="aime")]).answers
    assert [(a.set, a.prompt, a.correct, a.finish) for a in kept] == [
        ("", "p0", True, "stop"), ("", "p0", False, "length"), ("", "p0", True, "interrupted"),
        ("", "p1", True, "stop"), ("", "p1", False, "length"), ("", "p1", True, "interrupted"),
        ("aime", "other", False, "stop"),
    ]  # fmt: skip


def test_long_answers_are_cut():
    (kept,) = EvalAnswers.from_answers(5, [answer(text="x" * 10_000)]).answers
    assert len(kept.answer) == 4_000 and kept.answer.endswith("x…")
