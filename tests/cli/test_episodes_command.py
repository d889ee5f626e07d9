"""`scalerl episodes`: what is shown, what is chosen, and that nothing reaches the terminal raw."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
from made_episodes import episode, made_episodes
from test_snapshots import compare_with_snapshot

from scalerl.cli import main
from scalerl.runs.lines import EpisodePlay, SegmentSample, VersionRun
from scalerl.runs.store import RunStore, encode


@pytest.fixture
def run(tmp_path):
    made_episodes(tmp_path / "run")
    return tmp_path / "run"


def printed(capsys, *words, code=0):
    assert main(["episodes", *map(str, words)]) == code
    return capsys.readouterr().out


def test_what_a_person_sees(capsys, run):
    text = printed(capsys, run, "--where", "step=5 source=training", "--limit", "3")
    store = RunStore(run, resume=True)
    given = SegmentSample("context", 1, "What is\n2 + 2?", (1,))
    turns = [
        SegmentSample("policy", 2, "Let me " + "think " * 300, (1, 2), (VersionRun(11, 2),)),
        SegmentSample("context", 1, "<tool>no such\ttool: \x1b]0;x\x07 \u202e 答え </tool>", (1,)),
        SegmentSample("forced", 1, "So:", (1,), (VersionRun(11, 1),)),
    ]
    made = episode(
        0,
        step=12,
        rows=((given, *turns), (given,)),
        play=EpisodePlay(3, 2, 1, 1, 0.5),
        finish="turns",
        correct=False,
        why="expected 4\nfound \x1b[31mnothing",
    )
    store.append_episodes([encode(made)], 10**9)
    text += "\n" + printed(capsys, run, "training:80")
    assert all(len(line) <= 80 for line in text.splitlines())
    compare_with_snapshot("episodes", text)


@pytest.mark.parametrize(
    "options, ids",
    [
        (["--where", "source=training step>=9"], [f"training:{i}" for i in range(79, 71, -1)]),
        (["--prompt", "sums/3", "--where", "source=training step<2"],
         ["training:6", "training:7", "training:14", "training:15"]),
        (["--group", "validation:13", "--sort", "oldest"], ["validation:12", "validation:13"]),
        (["--text", "BECAUSE OF 77"], ["training:77"]),
        (["--regex", r"answer 3\dé", "--where", "correct=true source=validation"],
         ["validation:34"]),
        (["--where", 'task="long sums" reward>0.75 step<=3 source=validation'],
         ["validation:24"]),
        (["training:3", "validation:3"], ["training:3", "validation:3"]),
    ],
)  # fmt: skip
def test_chosen_episodes_as_json_lines(capsys, run, options, ids):
    lines = [json.loads(line) for line in printed(capsys, run, *options, "--json").splitlines()]
    found = [line["id"] for line in lines]
    assert found == ids
    assert all("".join(s["tokens"]) == s["text"] for e in lines for r in e["rows"] for s in r)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--where", "stp=3"], "no 'stp': did you mean step?"),
        (["--where", "correct"], "is no condition"),
        (["--where", "correct<true"], "have an order"),
        (["--where", "correct=maybe"], "true, false or none"),
        (["--where", 'task="x'], "quotation mark"),
        (["--regex", "(?=x)"], "look-around"),
        (["training:99"], "no episode 'training:99'"),
        (["--group", "99"], "no episode '99'"),
    ],
)
def test_a_bad_question_gets_one_line(capsys, run, options, says):
    assert main(["episodes", str(run), *options]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_a_place_without_episodes_is_refused(capsys, tmp_path):
    assert main(["episodes", str(tmp_path)]) == 2
    assert "holds no episodes" in capsys.readouterr().err
    assert main(["episodes", str(tmp_path / "none")]) == 2
    assert "no such file or directory" in capsys.readouterr().err


def test_none_that_match_is_a_no(capsys, run):
    assert "0 of 120 episodes match" in printed(capsys, run, "--where", "step=999", code=1)
