"""Eight turns with published tokenizers and templates: the tokens that the engine is given are those
that are trained on."""

import pytest
from conversations import ScriptedEngine, check_tokens, play, save_model, script, setup_of

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
            made[family] = tmp_path_factory.mktemp(family)
            save_model(made[family], tokenizers(family))
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
