"""A tiny model with a large vocabulary: the same policy, logits of real size, a tokenizer that is
not confused; and what emulated heads make of it."""

import json
import random

import pytest
import torch

from scalerl.cli import main
from scalerl.errors import InputError
from scalerl.models.head import final_hidden, head_of, project, use_head_precision
from scalerl.models.load import load_model_fast, load_tokenizer, load_tokenizer_fast, model_path
from scalerl.models.tiny.teacher import trace
from scalerl.models.tiny.teachers import TEACHERS
from scalerl.models.tiny.vocabulary import LargeVocabulary, widen_vocabulary
from scalerl.tasks.running_sums import Sum

SIZE = 8192
TEXT = "a7b5=<think>a770b5"
#: What the tiny model was taught: some right and some wrong sums.
LESSONS = [trace(Sum((7, 5, 8, 4)), TEACHERS["forgetful"], random.Random(i)) for i in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "tiny-vocab8192"
    widen_vocabulary(out, LargeVocabulary("tiny", SIZE))
    return out


def loaded(path):
    return load_model_fast(str(path), "float32", "cpu")


@torch.inference_mode()
def hidden_states(path):
    model = loaded(path)
    ids = load_tokenizer_fast(str(path))(TEXT)["input_ids"]
    return model, final_hidden(model, torch.tensor([ids]))[0]


def test_the_real_tokens_keep_their_odds_and_the_fillers_hardly_have_any(folder):
    small, hidden = hidden_states(model_path("tiny"))
    large, same = hidden_states(folder)
    assert torch.equal(hidden, same)
    before = head_of(small, "fp32").logits(hidden)
    after = head_of(large, "fp32").logits(hidden)
    real = after[:, : before.shape[1]]
    torch.testing.assert_close(real.log_softmax(1), before.log_softmax(1), atol=1e-4, rtol=1e-5)
    fillers = after[:, before.shape[1] :]
    assert fillers.shape[1] == SIZE - before.shape[1]
    assert 0.8 < float(fillers.std()) < 1.2 and abs(float(fillers.mean())) < 0.1
    # At the positions that the model was taught: those of the thought.
    mass = after.softmax(1)[6:, before.shape[1] :].sum(1)
    assert float(mass.min()) > 0 and float(mass.max()) < 0.02


def test_the_card_says_how_large_the_logits_are_and_how_to_make_the_model_again(folder):
    card = json.loads((folder / "warmstart.json").read_text())
    assert 18 < card["logits"]["largest"] < 22 and card["logits"]["filler_mass"] < 1e-3
    assert card["command"] == "scalerl warmstart --from tiny --vocabulary 8192 --seed 0"
    assert card["vocabulary"] == SIZE


def test_text_is_never_split_into_fillers_and_a_sampled_one_is_decoded(folder):
    for tokenizer in (load_tokenizer(str(folder)), load_tokenizer_fast(str(folder))):
        assert (
            tokenizer(TEXT)["input_ids"]
            == load_tokenizer_fast(model_path("tiny"))(TEXT)["input_ids"]
        )
        assert max(tokenizer("a<f0001>7")["input_ids"]) < 44
        assert tokenizer.decode([15, 44, SIZE - 1]) == "a<f0001><f8148>"
        assert len(tokenizer.get_vocab()) == SIZE


def test_the_same_command_makes_the_same_weights_and_another_seed_others(folder, tmp_path):
    weights = (folder / "model.safetensors").read_bytes()
    widen_vocabulary(tmp_path / "again", LargeVocabulary("tiny", SIZE))
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == weights
    widen_vocabulary(tmp_path / "other", LargeVocabulary("tiny", SIZE, seed=1))
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != weights


@torch.inference_mode()
def gap(path, precision, parts=1):
    """Mean |log-ratio| of an emulated head to FP32, over tokens that the model samples."""
    model, tokenizer = loaded(path), load_tokenizer_fast(str(path))
    weight = model.get_output_embeddings().weight
    found = []
    for lesson in LESSONS:
        ids = torch.tensor([tokenizer("a7b5c8d4=<think>" + lesson.text)["input_ids"]])
        hidden = final_hidden(model, ids)[0][9:]
        exact = head_of(model, "fp32").logits(hidden).log_softmax(1)
        coarse = project(hidden, weight, None, precision, parts).log_softmax(1)
        found.append((exact.exp() * (coarse - exact).abs()).sum(1))
    return float(torch.cat(found).mean())


def test_logits_of_real_size_lose_more_to_bf16_and_little_to_fp16(folder):
    small, large = gap(model_path("tiny"), "bf16-emulated"), gap(folder, "bf16-emulated")
    assert large > 2 * small
    assert gap(folder, "fp16-emulated") < large / 4
    assert gap(folder, "bf16-emulated", parts=8) > large


def test_larger_logits_leave_the_policy_and_double_what_bf16_loses(folder, tmp_path):
    widen_vocabulary(tmp_path / "made", LargeVocabulary("tiny", SIZE, level=40))
    found = []
    for path in (folder, tmp_path / "made"):
        model, hidden = hidden_states(path)
        found.append(head_of(model, "fp32").logits(hidden))
    before, after = found
    torch.testing.assert_close(after.softmax(1), before.softmax(1), atol=2e-4, rtol=0)
    assert 36 < float(after[6:].amax(1).mean()) < 44
    few, more = gap(folder, "bf16-emulated"), gap(tmp_path / "made", "bf16-emulated")
    assert 1.4 * few < more < 3 * few


def test_another_order_of_accumulation_gives_other_bits(folder):
    model, hidden = hidden_states(folder)
    use_head_precision(model, "bf16-emulated", 4)
    four = model.get_output_embeddings()(hidden)
    use_head_precision(model, "bf16-emulated")
    assert not torch.equal(four, model.get_output_embeddings()(hidden))
    with pytest.raises(InputError, match="1 to 64 parts"):
        use_head_precision(model, "bf16-emulated", 65)


def test_the_command_makes_one_and_refuses_what_cannot_be(tmp_path, capsys):
    words = ["warmstart", "--out", str(tmp_path / "made")]
    assert main([*words, "--from", "tiny", "--vocabulary", "100"]) == 0
    assert "100 tokens" in capsys.readouterr().out
    for wrong, why in (
        (["--from", "tiny"], "go together"),
        (["--from", "tiny", "--vocabulary", "44"], "has 44 tokens already"),
        (["--from", str(tmp_path), "--vocabulary", "99"], "no tiny model"),
        (["--from", "tiny", "--vocabulary", "99", "--size", "1", "32"], "leave them out"),
        (["--from", "tiny", "--vocabulary", "99", "--logits", "10"], "give 20 or more"),
    ):
        assert main([*words, *wrong]) == 2
        said = capsys.readouterr().err
        assert why in said and said.count("\n") == 1
