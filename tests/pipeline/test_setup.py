"""What a plan makes of a model's files: stop tokens, the end of a thought, questions as chats."""

import json
import shutil
from datetime import date

import numpy as np
import pytest

from scalerl.errors import InputError
from scalerl.models.load import load_tokenizer, model_path
from scalerl.pipeline.setup import RunSetup
from scalerl.recipe import Recipe

NO_SYSTEM = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('only users and assistants') }}{% endif %}{{ m.content }}<eos>{% endfor %}"
)
REWARD = "function:builtins:len"


@pytest.fixture
def model(tmp_path):
    """A copy of the tiny model, to be changed."""
    return shutil.copytree(model_path("tiny"), tmp_path / "model")


def plan_of(model, *overrides):
    small = ["validation.prompts=2", f"model.path={model}"]
    return RunSetup.from_recipe(Recipe.load("scalerl", "tiny", overrides=[*small, *overrides]))


def change(file, **fields):
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_the_tiny_model_ends_its_answers_as_before(model):
    setup = plan_of(model)
    assert setup.control.stop_ids == (1,)
    assert setup.control.max_tokens == 64 + 2 + 6  # nothing but `</think>` is a part of it
    assert setup.stop_text == "rollouts end at <eos> (1)"


def test_all_ends_that_a_model_names_are_stop_tokens_of_training_and_validation(model):
    change(model / "generation_config.json", eos_token_id=[7, 1, 9])
    change(model / "config.json", eos_token_id=[1, 12])
    for control in ([], ["length.control=none", "length.max_tokens=20"]):
        setup = plan_of(model, *control)
        assert setup.control.stop_ids == setup.validation_control.stop_ids == (7, 1, 9, 12)
    assert plan_of(model, "validation.length_control=false").validation_control.stop_ids
    (model / "generation_config.json").unlink()
    assert plan_of(model).control.stop_ids == (1, 12)


def test_the_end_of_turn_of_a_chat_template_is_a_stop_token(model):
    change(model / "tokenizer_config.json", eos_token=None)
    change(model / "config.json", eos_token_id=None)
    (model / "generation_config.json").unlink()
    assert plan_of(model).control.stop_ids == ()
    (model / "chat_template.jinja").write_text(NO_SYSTEM)
    assert plan_of(model).control.stop_ids == (1,)


@pytest.mark.parametrize("phrase", ["!", "!<think>", "! </ think>"])
def test_a_phrase_that_does_not_close_the_thought_is_refused(model, phrase):
    with pytest.raises(InputError, match=r"length.phrase does not close the thought") as problem:
        plan_of(model, f"length.phrase={phrase}")
    assert "'</think>'" in str(problem.value)


def test_what_closes_a_thought_is_seen_by_the_task_even_as_a_special_token(model):
    """Some tokenizers call `</think>` special, and would leave it out of the text."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["special"] = True
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    ids = np.array(load_tokenizer(str(model))("a7</think>12<eos>")["input_ids"])
    assert load_tokenizer(str(model)).decode(ids, skip_special_tokens=True) == "a712"
    assert plan_of(model).text_of(ids) == "a7</think>12"


def chats(tmp_path, *chats):
    rows = [json.dumps({"prompt": [{"role": r, "content": f"a{i}"} for r in roles]})
            for i, roles in enumerate(chats * 10)]  # fmt: skip
    (tmp_path / "chats.jsonl").write_text("\n".join(rows))
    return [f"task.name={REWARD}", f"task.dataset={tmp_path / 'chats.jsonl'}", "task.options=",
            "task.options.held_out_share=0.5"]  # fmt: skip


def test_a_system_message_is_merged_where_the_template_refuses_it_and_that_is_said(model, tmp_path):
    (model / "chat_template.jinja").write_text(NO_SYSTEM)
    setup = plan_of(model, *chats(tmp_path, ("system", "user")))
    assert "<eos>" not in setup.tokenizer.decode(setup.tokens_of(setup.validation[0]))[:-5]
    assert [w for w in setup.warnings if "refuses system messages" in w]
    assert not plan_of(model, *chats(tmp_path, ("user",))).warnings


def test_roles_that_the_template_refuses_are_found_before_the_run_with_their_prompt(
    model, tmp_path
):
    (model / "chat_template.jinja").write_text(NO_SYSTEM)
    with pytest.raises(InputError, match=r"only users and assistants.*roles are tool, user"):
        plan_of(model, *chats(tmp_path, ("user",), ("tool", "user")))


SYSTEM = "{% for m in messages %}{{ m.role[:1] }}{{ m.content }}={% endfor %}"


def words_of(setup, prompt):
    return setup.tokenizer.decode(setup.tokens_of(prompt))


def test_a_system_prompt_is_the_first_message_in_training_and_validation(model, tmp_path):
    (model / "chat_template.jinja").write_text(SYSTEM)
    for asked in ([], chats(tmp_path, ("user",), ("user", "assistant", "user"))):
        without, setup = plan_of(model, *asked), plan_of(model, "task.system_prompt=a1b2", *asked)
        for held_out, prompts in ((True, setup.validation), (False, setup.prompts.values())):
            for prompt in list(prompts)[:5]:
                plain = words_of(without, prompt)
                assert words_of(setup, prompt).endswith("a1b2=" + plain), held_out
                assert not plain.endswith("a1b2=" + plain)


def test_a_system_prompt_that_the_model_cannot_take_is_refused_in_one_line(model, tmp_path):
    with pytest.raises(
        InputError, match=r"needs a chat template, and the tokenizer of .* has none"
    ):
        plan_of(model, "task.system_prompt=a1")
    (model / "chat_template.jinja").write_text(NO_SYSTEM)
    with pytest.raises(InputError, match=r"refused by the chat template .* no system role"):
        plan_of(model, "task.system_prompt=a1")
    (model / "chat_template.jinja").write_text(SYSTEM)
    with pytest.raises(InputError, match="has a system message of its own"):
        plan_of(model, "task.system_prompt=a1", *chats(tmp_path, ("user",), ("system", "user")))


DATED = "{{ strftime_now('%Y%m%d') }}{% for m in messages %}{{ m.content }}{% endfor %}"


def days(*days):
    """A calendar: each look at it is another day."""
    left = iter(days)
    return lambda: date.fromisoformat(next(left))


def test_a_template_with_a_date_gets_the_day_of_the_plan_which_its_recipe_keeps(model):
    (model / "chat_template.jinja").write_text(DATED)
    recipe = Recipe.load("scalerl", "tiny", overrides=[f"model.path={model}"])
    first = RunSetup.from_recipe(recipe, today=days("2026-11-18"))
    assert first.recipe.model.chat_date == "2026-11-18" and first.dated
    later = RunSetup.from_recipe(first.recipe, today=days())
    for setup in (first, later):
        assert setup.tokenizer.decode(setup.tokens_of(setup.validation[0])).startswith("20261118")


def test_without_such_a_template_no_date_is_set(model):
    setup = plan_of(model)
    assert setup.recipe.model.chat_date is None and not setup.dated


def test_a_date_that_is_none_is_refused(model):
    with pytest.raises(InputError, match=r"chat_date = '18 Nov' is not a date: write it like 2026"):
        plan_of(model, "model.chat_date=18 Nov")
    assert plan_of(model, "model.chat_date=2026-11-18").recipe.model.chat_date == "2026-11-18"
