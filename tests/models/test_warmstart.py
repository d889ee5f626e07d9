"""The warm start, and the checkpoints that come with the package."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from scalerl.cli import main, parser
from scalerl.errors import InputError
from scalerl.models.load import SHIPPED, model_path
from scalerl.models.tiny.sampling import BUDGET, sample
from scalerl.models.tiny.teachers import TEACHERS
from scalerl.models.tiny.tokenizer import (
    GUESS_VOCABULARY,
    TOOLS_VOCABULARY,
    VOCABULARY,
    encode,
    make_tokenizer,
)
from scalerl.models.tiny.warmstart import (
    CARD,
    WarmStart,
    make_model,
    teach,
    warm_start,
)
from scalerl.tasks.running_sums import PHRASE, RunningSums, Sum, ceiling

torch = pytest.importorskip("torch", reason="training is not installed")
pytest.importorskip("transformers", reason="training is not installed")


def card_of(name):
    return json.loads((Path(model_path(name)) / CARD).read_text())


#: The teacher of each shipped model.
TAUGHT_BY = dict(zip(SHIPPED, ("forgetful", "noisy", "hasty", "timid"), strict=True))


def load(name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = model_path(name)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()
    return model, tokenizer, card_of(name)


@pytest.fixture(scope="module", params=SHIPPED)
def shipped(request):
    return load(request.param)


@pytest.fixture(scope="module", params=["tiny", "tiny-noisy"])
def shipped_sums(request):
    return load(request.param)


@pytest.mark.parametrize(("name", "teacher"), TAUGHT_BY.items())
def test_a_shipped_checkpoint_is_small_and_says_how_it_was_made(name, teacher):
    assert sum(path.stat().st_size for path in Path(model_path(name)).iterdir()) < 4e6
    card = card_of(name)
    settings = card["settings"]
    made = WarmStart(teacher, settings["seed"], tuple(settings["steps"]))
    assert card["command"] == made.command
    assert settings == json.loads(json.dumps(asdict(made)))
    assert card["noise"] == asdict(TEACHERS[teacher])
    assert card["rollouts"] == 400


def test_a_shipped_checkpoint_is_what_its_card_describes(shipped):
    model, tokenizer, card = shipped
    assert sum(p.numel() for p in model.parameters()) == card["parameters"]
    assert model.dtype == torch.float32
    vocabulary = TEACHERS[card["settings"]["teacher"]].vocabulary
    assert tokenizer.get_vocab() == make_tokenizer(vocabulary).get_vocab()


@pytest.mark.parametrize("greedy", [False, True])
def test_a_shipped_checkpoint_starts_where_its_card_says(shipped, greedy):
    """On other prompts' budgets and draws than the card's; standard error 0.023 at 0.14."""
    *model, card = shipped
    teacher = TEACHERS[card["settings"]["teacher"]]
    rate = teacher.pass_rate(*model, rollouts=225, seed=1, greedy=greedy)
    assert abs(rate - card["pass_rate"]["greedy" if greedy else "sampled"]) < 0.08


def test_there_is_something_to_learn_for_the_default_model_and_little_for_the_noisy_one():
    """Greedy, the noisy one is at the ceiling at once; the default is far below half of it."""
    top = ceiling(*BUDGET)
    assert card_of("tiny")["pass_rate"]["greedy"] < 0.25 * top
    assert card_of("tiny-noisy")["pass_rate"]["greedy"] > 0.95 * top
    assert all(0.02 <= card_of(name)["pass_rate"]["sampled"] <= 0.3 for name in SHIPPED)


@pytest.mark.parametrize("name", ["tiny-tools", "tiny-guess"])
def test_greedy_the_models_of_the_games_start_far_below_what_is_possible(name):
    assert card_of(name)["pass_rate"]["greedy"] < 0.1


def test_plain_generate_of_transformers_answers_short_sums(shipped_sums):
    model, tokenizer, _ = shipped_sums
    prompts = [
        p for p in RunningSums().validation_prompts(300) if len(Sum.parse(p.question).digits) <= 6
    ][:64]
    asked = tokenizer([p.question for p in prompts], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    with torch.inference_mode():
        written = model.generate(
            **asked, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=70
        )
    texts = tokenizer.batch_decode(written[:, asked["input_ids"].shape[1] :])
    task = RunningSums()
    right = [task.check(p, text).correct for p, text in zip(prompts, texts, strict=True)]
    assert 0.1 < sum(right) / len(right) < 0.7


def test_an_interrupted_thought_is_followed_by_an_answer_and_an_end(shipped_sums):
    model, tokenizer, _ = shipped_sums
    asked = Sum((3, 4, 5, 6, 7, 8, 9))
    texts = sample(model, tokenizer, [asked.question] * 40, seed=0, budget=(8, 10))
    answers = [text.partition(PHRASE)[2] for text in texts]
    well_formed = [bool(re.fullmatch("[0-9]{2}<eos>", answer)) for answer in answers]
    assert sum(well_formed) > 36


def test_warm_start_lowers_the_loss():
    tokenizer, settings = make_tokenizer(), WarmStart(steps=(20, 0), batch=16)
    fractions = []
    losses = teach(make_model(settings, tokenizer), tokenizer, settings, fractions.append)
    assert losses[-1] < losses[0] - 0.5
    assert fractions[-1] == 1.0
    assert fractions == sorted(fractions)


def test_one_seed_gives_one_model_and_another_seed_another():
    tokenizer = make_tokenizer()

    def weights(seed):
        settings = WarmStart(seed=seed, steps=(3, 2), batch=8)
        model = make_model(settings, tokenizer)
        teach(model, tokenizer, settings)
        return model.state_dict()

    one, same, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if "proj" in name)


def test_the_command_saves_what_transformers_loads(tmp_path, capsys):
    out = tmp_path / "warm"
    args = ["warmstart", "--out", str(out), "--steps", "2", "1", "--rollouts", "4", "--json"]
    assert main(args) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["settings"]["steps"] == [2, 1]
    assert card["command"] == "scalerl warmstart --teacher forgetful --seed 0 --steps 2 1"
    assert set(card["pass_rate"]) == {"sampled", "greedy"}
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    assert AutoModelForCausalLM.from_pretrained(out).config.vocab_size == len(tokenizer)
    assert main(args) == 0  # over its own result


def test_the_command_knows_every_teacher(tmp_path):
    for name in TEACHERS:
        args = parser().parse_args(["warmstart", "--teacher", name, "--out", str(tmp_path)])
        assert args.teacher == name
    with pytest.raises(
        InputError, match="no teacher is named strict: give forgetful or noisy or hasty or timid"
    ):
        WarmStart("strict")


def test_teachers_make_different_models_of_one_seed():
    def first_losses(teacher):
        tokenizer = make_tokenizer(TEACHERS[teacher].vocabulary)
        settings = WarmStart(teacher, steps=(0, 3), batch=8)
        return teach(make_model(settings, tokenizer), tokenizer, settings)

    assert len({tuple(first_losses(teacher)) for teacher in TEACHERS}) == len(TEACHERS)


def test_models_of_other_sizes_are_made_for_studies_of_the_size(tmp_path, capsys):
    words = ["warmstart", "--steps", "1", "0", "--rollouts", "2"]
    assert main([*words, "--size", "1", "32", "--out", str(tmp_path / "small"), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (1, 32)
    assert config["num_attention_heads"] == 1 and config["intermediate_size"] == 128
    assert "--size 1 32" in card["command"]
    assert main([*words, "--size", "1", "33", "--out", str(tmp_path / "odd")]) == 2
    assert "a multiple of 32" in capsys.readouterr().err


def test_a_directory_with_other_files_is_not_written_to(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("…")
    assert main(["warmstart", "--out", str(tmp_path), "--steps", "1", "0"]) == 2
    assert "other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_no_steps_at_all_are_refused(tmp_path):
    with pytest.raises(InputError, match="at least one"):
        warm_start(tmp_path, WarmStart(steps=(0, 0)))


def test_the_tokenizer_is_one_token_a_character_and_gives_the_text_back():
    tokenizer = make_tokenizer()
    text = "a7b5=<think>a770~a770b521!</think>21<eos>"
    ids = tokenizer(text)["input_ids"]
    assert ids == encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.removesuffix("<eos>")
    assert len(tokenizer(PHRASE)["input_ids"]) == 2
    assert len(tokenizer) == len(VOCABULARY) == 44


def test_a_tool_call_takes_three_tokens_and_a_number_one():
    call = '<tool_call>{"name": "lookup", "arguments": {"key": "d"}}</tool_call>'
    for text, vocabulary, n in [
        (f"dkq={call}<eos>7=7<eos>", TOOLS_VOCABULARY, 4 + 3 + 5),
        ("dk12-18:15<eos>higher07<eos>?", GUESS_VOCABULARY, 6 + 3 + 2 + 1),
    ]:
        tokenizer = make_tokenizer(vocabulary)
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == n and ids == encode(text, vocabulary)
        assert tokenizer.decode(ids) == text


def test_what_the_tokenizer_does_not_know_is_one_unknown_token_a_character():
    tokenizer = make_tokenizer()
    assert tokenizer("a?Ü")["input_ids"] == [*encode("a"), *[tokenizer.unk_token_id] * 2]
