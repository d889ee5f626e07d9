"""The games: what is hidden, what counts, and that the constructed ceiling is exact."""

import asyncio
from collections import Counter

import pytest

from scalerl.environments.games import guess, lookups
from scalerl.environments.interface import Action, Observation, Outcome
from scalerl.environments.parsers import hermes
from scalerl.tasks.registry import make_task
from scalerl.tasks.task import make_prompt

TOOLS = "environment:tiny-tools"
GUESS = "environment:tiny-guess"
#: Turns of the presets.
TURNS = {TOOLS: 8, GUESS: 4}
SEED = 11


def call(key):
    return f"{lookups.CALL}{key}{lookups.CALL_END}"


def text_of(observation):
    return "".join(message["content"] for message in observation.messages)


async def play(task, prompt, policy, turns, seed=SEED):
    """The replies of an episode. The policy is a generator: it is sent replies and yields turns."""
    environment = task.new_environment(prompt)
    replies = [await environment.reset(prompt, seed)]
    player = policy(str(prompt.question))
    text = next(player)
    for _ in range(turns):
        replies.append(await environment.step(Action(*hermes(text))))
        if isinstance(replies[-1], Outcome):
            break
        text = player.send(text_of(replies[-1]))
    await environment.close()
    return replies


def won(replies):
    return isinstance(replies[-1], Outcome) and replies[-1].score.correct


def pass_rate(name, policy, turns):
    task = make_task(name)
    prompts = task.validation_prompts(200)

    async def all_of_them():
        return [won(await play(task, p, policy, turns)) for p in prompts]

    return sum(asyncio.run(all_of_them())) / len(prompts)


def looks_everything_up(question):
    total = 0
    for key in question.removesuffix(lookups.EQUALS):
        total += int((yield f"{total % 10}{call(key)}"))
    yield f"={total % 10}"


def makes_an_answer_up(question):
    yield "=5"


def bisects(question):
    low, high = guess.range_of(question)
    while True:
        middle = (low + high) // 2
        if (yield guess.written(middle)) == guess.HIGHER:
            low = middle + 1
        else:
            high = middle - 1


def counts_upwards(question):
    low, high = guess.range_of(question)
    for number in range(low, high + 1):
        yield guess.written(number)


@pytest.mark.parametrize("turns", [2, 3, 6, 8, 10])
def test_looking_everything_up_reaches_exactly_the_ceiling(turns):
    found = pass_rate(TOOLS, looks_everything_up, turns)
    assert found == lookups.Lookups.ceiling(make_task(TOOLS).validation_prompts(200), turns)
    assert found == lookups.ceiling(lookups.SIZES, turns)


@pytest.mark.parametrize("turns", [2, 3, 4, 5])
def test_bisection_reaches_exactly_the_ceiling(turns):
    found = pass_rate(GUESS, bisects, turns)
    assert found == guess.GuessTheNumber.ceiling(make_task(GUESS).validation_prompts(200), turns)
    assert found == guess.ceiling(guess.WIDTHS, turns)


def test_without_the_tool_and_without_a_strategy_nothing_is_won():
    assert pass_rate(TOOLS, makes_an_answer_up, TURNS[TOOLS]) == 0
    assert pass_rate(GUESS, counts_upwards, TURNS[GUESS]) == 0


def winnable(low, high, turns, place):
    """Whether any sequence of guesses wins: all of them are tried."""
    if turns == 0:
        return False
    for number in range(low, high + 1):
        opponent = guess.Opponent(low, high, place)
        if opponent.reply(number) is None:
            return True
        if winnable(opponent.low, opponent.high, turns - 1, place):
            return True
    return False


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_no_strategy_wins_more_than_the_ceiling_allows(turns):
    for width in range(1, 11):
        for place in range(4):
            assert winnable(0, width - 1, turns, place) == (guess.ceiling([width], turns) == 1)


@pytest.mark.parametrize(
    ("name", "difficulties", "train"), [(TOOLS, lookups.SIZES, 500), (GUESS, guess.WIDTHS, 400)]
)
def test_both_sides_of_the_split_have_equally_many_prompts_of_each_difficulty(
    name, difficulties, train
):
    task = make_task(name)
    held_out = task.validation_prompts(200)
    for prompts, each in [(held_out, 200 // len(difficulties)), (task.train_prompts(0), train)]:
        counts = Counter(p.columns["difficulty"] for p in prompts)
        assert counts == dict.fromkeys(difficulties, each)
    assert not {p.id for p in held_out} & {p.id for p in task.train_prompts(0)}


@pytest.mark.parametrize(("name", "policy"), [(TOOLS, looks_everything_up), (GUESS, bisects)])
def test_an_episode_follows_from_prompt_seed_and_actions(name, policy):
    task = make_task(name)
    prompt = next(p for p in task.validation_prompts(200) if p.columns["difficulty"] == 7)

    def observed(seed):
        replies = asyncio.run(play(task, prompt, policy, 3, seed))
        return [text_of(reply) for reply in replies if isinstance(reply, Observation)]

    found = [observed(seed) for seed in range(8)]
    assert found == [observed(seed) for seed in range(8)]
    assert any(each != found[0] for each in found)


def steps(environment, prompt, *texts):
    async def all_of_them():
        await environment.reset(prompt, SEED)
        return [await environment.step(Action(*hermes(text))) for text in texts]

    return asyncio.run(all_of_them())


def test_wrong_calls_come_back_as_text_and_are_counted():
    asked = make_prompt(TOOLS, "dk=", None)
    for text, why in [
        (call("dk"), "no such key"),
        (call("D"), "no such key"),
        ('<tool_call>{"name": "look", "arguments": {"key": "d"}}</tool_call>', "no tool 'look'"),
        ('<tool_call>{"name": "lookup", "arguments": {}}</tool_call>', "argument key is missing"),
        (lookups.CALL + "d", "</tool_call> is missing"),
        ("<tool_call>d</tool_call>", "not JSON"),
    ]:
        (reply,) = steps(lookups.Lookups(), asked, text)
        assert isinstance(reply, Observation) and reply.tool_failures == 1
        assert text_of(reply).startswith("error: ") and why in text_of(reply)


def test_one_call_a_turn_is_answered():
    asked = make_prompt(TOOLS, "dk=", None)
    both, one = (
        steps(lookups.Lookups(), asked, text)[0] for text in (call("d") + call("k"), call("d"))
    )
    assert both == one and len(text_of(both)) == 1


def test_the_right_sum_counts_only_if_every_key_was_looked_up():
    asked = make_prompt(TOOLS, "dk=", None)
    d, k, _ = map(text_of, steps(lookups.Lookups(), asked, call("d"), call("k"), call("d")))
    total = (int(d) + int(k)) % 10
    for texts, correct in [
        ([call("d"), call("k"), f"={total}"], True),
        ([call("k"), call("d"), call("d"), f"={total}"], True),
        ([call("d"), call("k"), f"={(total + 1) % 10}"], False),
        ([call("d"), call("k"), f"{total}"], False),
        ([call("d"), call("d"), f"={total}"], False),
        ([f"={total}"], False),
    ]:
        outcome = steps(lookups.Lookups(), asked, *texts)[-1]
        assert outcome.score.correct is correct, texts
        assert outcome.score.reward == (1.0 if correct else -1.0)


def test_a_turn_that_is_no_number_and_a_number_outside_cost_a_turn():
    asked = make_prompt(GUESS, "dk12-14:", None)
    replies = steps(
        guess.GuessTheNumber(), asked, "", "1", "x12", "12 13", "31", "03", "12", "14", "13"
    )
    texts = [text_of(r) for r in replies[:-1]]
    assert texts == ["?", "?", "?", "?", "lower", "higher", "higher", "lower"]
    assert replies[-1].score.correct


def test_the_tool_is_shown_with_its_types_and_its_docstring():
    async def tools():
        observation = await lookups.Lookups().reset(make_prompt(TOOLS, "dk=", None), SEED)
        return observation.tools

    (schema,) = asyncio.run(tools())
    assert schema["function"]["name"] == "lookup"
    assert schema["function"]["parameters"]["properties"]["key"]["type"] == "string"
    assert schema["function"]["description"] == "Look up the digit behind a key."
