"""Eight turns with published tokenizers and templates: the tokens that the engine is given are
those that are trained on."""

from dataclasses import replace

import pytest
import torch
from conversations import (
    REPLIES,
    SPELLED,
    Conversation,
    ScriptedEngine,
    check_sampled,
    check_tokens,
    play,
    sampling_setup,
    save_model,
    script,
    setup_of,
    tool,
    user,
)
from transformers import LlamaForCausalLM

from scalerl.engine.registry import ENGINES
from scalerl.placement.specs import engine_spec

#: Turns (from 0) that begin a new row: Qwen3 drops thoughts once a user message follows, those of
#: turns 0 and 1 before turn 2, and those of turns 5 and 6 before turn 7.
FORKS = {"Qwen2.5": [], "Qwen3": [2, 7], "Llama-3": [], "Llama-3.1": [], "SmolLM2": []}
TOOL_FORMATS = {"Qwen2.5": "hermes", "Qwen3": "hermes", "Llama-3": "plain", "Llama-3.1": "llama3",
                "SmolLM2": "plain"}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tokenizers, tmp_path_factory):
    """The folder of a small model with the vocabulary of a family."""
    made = {}

    def of(family):
        if family not in made:
            tokenizer = tokenizers(family)  # first: it may skip the test
            made[family] = tmp_path_factory.mktemp(family)
            save_model(made[family], tokenizer)
        return made[family]

    return of


def scripted(setup, turns):
    stop = setup.episode_rules.renderer.end_of_turn
    return ScriptedEngine([(t.ids(setup.tokenizer, stop), t.cut) for t in turns])


@pytest.mark.parametrize("family", FORKS)
def test_eight_turns_are_trained_on_as_the_engine_saw_them(folder, family):
    setup = setup_of(folder(family))
    turns = script(TOOL_FORMATS[family])
    played = play(setup, scripted(setup, turns), episodes=2)
    assert check_tokens(played) == [FORKS[family]] * 2
    assert [score.correct for score in played.group.scores.values()] == [True, True]
    (episode, _) = played.group.in_order()
    assert (episode.facts.turns, episode.facts.tool_calls, episode.facts.tool_failures) == (8, 2, 0)
    written = [i for row in episode.rows for i in row.token_ids[row.policy_N].tolist()]
    stop = setup.episode_rules.renderer.end_of_turn
    assert written == [i for t in turns for i in t.ids(setup.tokenizer, stop)]
    check_text(setup, played.log[0], turns, exact=family in ("Qwen2.5", "SmolLM2"))


def check_text(setup, log, turns, exact):
    """Assert that what the engine is given reads as the whole conversation rendered again, but for
    white space that some templates add and take away, and that spelled control tokens are none."""
    stop = setup.episode_rules.renderer.end_of_turn
    name = setup.tokenizer.convert_ids_to_tokens(stop)
    messages = [user("Begin."), user("\nWhat is 2 + 2? ")]
    results = iter("45")
    for (given, _), turn, reply in zip(log, turns, [*REPLIES, ()], strict=True):
        rendered = setup.chat.text(messages, Conversation().tools.schemas)
        shown = setup.tokenizer.decode(given)
        if exact:
            assert shown == rendered
        assert "".join(shown.split()) == "".join(rendered.split())
        # (Llama 3.1 writes results of tools as JSON, in which a line break is two characters.)
        assert given.count(stop) == rendered.replace("\\n", "\n").replace(SPELLED, "").count(name)
        messages.append({"role": "assistant", "content": turn.text})
        messages += [tool(next(results))] if reply is None else reply


def test_history_can_be_kept_in_one_row(folder):
    path = folder("Qwen3")
    forking, keeping = setup_of(path), setup_of(path, "environment.history=keep")
    (warning,) = forking.warnings
    assert str(path) in warning and 'environment.history = "keep"' in warning
    assert keeping.warnings == []
    played = play(keeping, scripted(keeping, script("hermes")))
    assert check_tokens(played) == [[]]
    text = keeping.tokenizer.decode(played.group.episodes[0].rows[0].token_ids)
    assert text.count("</think>") == 4


@pytest.mark.parametrize(
    ("family", "history"),
    [
        ("Qwen2.5", "template"),
        ("Qwen3", "template"),
        ("Qwen3", "keep"),
        ("Llama-3", "template"),
        ("SmolLM2", "template"),
    ],
)
def test_eight_sampled_turns_are_trained_on_as_the_engine_saw_them(
    tokenizers, tmp_path, family, history
):
    """By the local engine. A random model writes tokens that no tokenizer would."""
    setup = sampling_setup(tmp_path, tokenizers(family), f"environment.history={history}")
    engine = ENGINES["local"](replace(engine_spec(setup), slots=3))
    played = play(setup, engine, episodes=3)
    model = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    forks = check_sampled(setup, played, model)
    assert (forks > 0) == ((family, history) == ("Qwen3", "template"))
    finishes = {turn.finish for log in played.log.values() for _, turn in log}
    assert finishes == {"stop", "length"}
