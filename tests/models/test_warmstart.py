"""The warm start, and the checkpoint that comes with the package."""

import json
import re
from pathlib import Path

import pytest

from scalerl.cli import main
from scalerl.errors import InputError
from scalerl.models.load import model_path
from scalerl.models.tiny.sampler import sample
from scalerl.models.tiny.tokenizer import VOCABULARY, encode, make_tokenizer
from scalerl.models.tiny.warmstart import (
    CARD,
    WarmStart,
    make_model,
    starting_pass_rate,
    teach,
    warm_start,
)
from scalerl.tasks.running_sums import PHRASE, RunningSums, Sum

TINY = Path(model_path("tiny"))

torch = pytest.importorskip("torch", reason="training is not installed")
pytest.importorskip("transformers", reason="training is not installed")


@pytest.fixture(scope="module")
def shipped():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY, local_files_only=True)
    return AutoModelForCausalLM.from_pretrained(TINY, local_files_only=True).eval(), tokenizer


def test_the_shipped_checkpoint_is_small_and_says_how_it_was_made():
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 4e6
    card = json.loads((TINY / CARD).read_text())
    assert card["command"] == f"scalerl warmstart --seed {card['settings']['seed']}"
    assert 0.1 <= card["pass_rate"] <= 0.3
    assert card["rollouts"] == 400


def test_the_shipped_checkpoint_is_what_its_card_describes(shipped):
    model, tokenizer = shipped
    card = json.loads((TINY / CARD).read_text())
    assert sum(p.numel() for p in model.parameters()) == card["parameters"]
    assert model.dtype == torch.float32
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()


def test_the_shipped_checkpoint_starts_between_a_tenth_and_three_tenths(shipped):
    rate = starting_pass_rate(*shipped, RunningSums(), rollouts=225, seed=1)
    assert 0.07 < rate < 0.3  # standard error 0.023


def test_plain_generate_of_transformers_answers_short_sums(shipped):
    model, tokenizer = shipped
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


def test_an_interrupted_thought_is_followed_by_an_answer_and_an_end(shipped):
    model, tokenizer = shipped
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
    assert json.loads(capsys.readouterr().out)["settings"]["steps"] == [2, 1]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    assert AutoModelForCausalLM.from_pretrained(out).config.vocab_size == len(tokenizer)
    assert main(args) == 0  # over its own result


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


def test_what_the_tokenizer_does_not_know_is_one_unknown_token_a_character():
    tokenizer = make_tokenizer()
    assert tokenizer("a?Ü")["input_ids"] == [*encode("a"), *[tokenizer.unk_token_id] * 2]
