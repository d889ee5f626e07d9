"""What tokens write, and which of them end a rollout: with real tokenizers of every kind."""

import random
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scalerl.algorithm.length import EndOfThought
from scalerl.models.load import load_tokenizer, model_path
from scalerl.models.tokens import end_of_turn, hidden_tokens, stop_tokens, token_pieces

CLOSE = "</think>"
LINES = [
    "so 42 </think> The answer is 42.",
    "</div> <b>think</b> </p> think hard",
    "a</think>b",
    "1 < 2 and 3 > 2; < / > th in k",
    "思考 </think> naïve café 🙂",
    "</th></ think>",
] * 4
SPECIAL = ["<pad>", "<eos>", "<unk>"]


def wrapped(tokenizer, think=None, **more):
    if think is not None:
        tokenizer.add_tokens([AddedToken(CLOSE, special=think, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>", **more
    )


def byte_level(size=330, think=None, **more):
    """As GPT-2, Qwen, Llama 3 and SmolLM2 have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, how)
    return wrapped(tokenizer, think, **more)


def sentence_pieces(think=None, **more):
    """As Llama 2, Mistral and Gemma have it: a mark for the space, bytes for what is unknown, and
    no space at the beginning."""
    pieces = [*((token, 0.0) for token in SPECIAL), *((f"<0x{b:02X}>", -9.0) for b in range(256))]
    words = ["▁", "▁so", "▁</", "think", ">", "▁The", ">▁The", "</", "<", "/", "▁<", "th", "ink",
             "▁think", "a", "b", "42", "▁42", "e", "k>", "n"]  # fmt: skip
    pieces += [(word, -3.0 - len(word) / 10) for word in words]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return wrapped(tokenizer, think, **more)


KINDS = {
    "byte-level": byte_level,
    "byte-level, large": lambda: byte_level(600),
    "byte-level, a token for it": lambda: byte_level(think=False),
    "byte-level, a special token for it": lambda: byte_level(think=True),
    "sentencepiece": sentence_pieces,
    "sentencepiece, a special token for it": lambda: sentence_pieces(think=True),
    "tiny": lambda: load_tokenizer(model_path("tiny")),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return KINDS[request.param]()


def text_of(tokenizer, ids, hidden):
    return tokenizer.decode([i for i in ids if i not in hidden], skip_special_tokens=False)


@pytest.mark.parametrize("close", [CLOSE, "思考", "</th>", "nn"])
def test_the_end_of_a_thought_is_found_whatever_tokens_write_it(tokenizer, close):
    """Random tokens, and those of a text cut up at random: the end is found at the very token with
    which the decoded text holds it, and nowhere else."""
    rng = random.Random(0)
    hidden = hidden_tokens(tokenizer, (close,))
    pieces = token_pieces(tokenizer, hidden)
    end = EndOfThought.from_text(close, pieces)
    likely = sorted(set().union(*end.transitions)) or [0]
    closed = 0
    for _ in range(300):
        ids = rng.choices(likely, k=rng.randint(1, 9)) if rng.random() < 0.5 else []
        for part in rng.choices([close, close[:2], close[2:], "so ", " <", "é"], k=4):
            cut = rng.randint(0, len(part))
            for half in (part[:cut], part[cut:]):
                ids += tokenizer(half, add_special_tokens=False)["input_ids"]
        first = next(
            (n for n in range(1, len(ids) + 1) if close in text_of(tokenizer, ids[:n], hidden)), 0
        )
        assert end.read(0, ids)[1] == first, [pieces[i] for i in ids]
        closed += bool(first)
    assert closed > 30 or close not in tokenizer.decode(tokenizer(close)["input_ids"])


def test_a_closing_text_split_as_smollm2_splits_it_is_seen():
    """There ` </`, `think` and `>` are three tokens, others than the closing text has by itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "<"), ("Ġ<", "/"), ("<", "/"), ("t", "h"), ("i", "n"), ("in", "k"),
              ("th", "ink")]  # fmt: skip
    words = [*SPECIAL, *alphabet, *(a + b for a, b in merges)]
    model = models.BPE({word: i for i, word in enumerate(words)}, merges)
    plain = Tokenizer(model)
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = wrapped(plain)

    def split(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    ids = split("42 </think> The")
    assert tokenizer.convert_ids_to_tokens(ids)[2:5] == ["Ġ</", "think", ">"]
    assert tokenizer.convert_ids_to_tokens(split(CLOSE)) == ["</", "think", ">"]
    end = EndOfThought.from_text(CLOSE, token_pieces(tokenizer, hidden_tokens(tokenizer)))
    assert end.read(0, ids) == (len(CLOSE), 5)


def test_pieces_put_together_are_the_text(tokenizer):
    hidden = hidden_tokens(tokenizer)
    pieces = token_pieces(tokenizer, hidden)
    rng = random.Random(1)
    names = tokenizer.convert_ids_to_tokens(range(len(pieces)))
    # Bytes in a row that are no text are lost together: what one adds depends on the others.
    shown = [i for i, n in enumerate(names) if i not in hidden and not n.startswith("<0x")]
    anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
    for _ in range(100):
        ids = anchor + rng.choices(shown, k=6)
        written = b"".join(pieces[i] for i in ids).decode(errors="replace")
        assert written.lstrip().replace("\ufffd", "") == (
            tokenizer.decode(ids).lstrip().replace("\ufffd", "")
        )


def test_a_false_start_does_not_hide_the_end():
    pieces = [bytes([c]) for c in range(256)]
    end = EndOfThought.from_text(CLOSE, pieces)
    for text in ("</</think>", "<</think>", "</thin</think>", "</think</think>"):
        assert end.read(0, text.encode()) == (8, len(text))
    assert end.longest_partial_match == 7


def test_special_tokens_are_no_text_but_what_closes_a_thought_is():
    tokenizer = byte_level(think=True)
    close = tokenizer.convert_tokens_to_ids(CLOSE)
    assert close in hidden_tokens(tokenizer)
    assert close not in hidden_tokens(tokenizer, (CLOSE,))
    assert tokenizer.eos_token_id in hidden_tokens(tokenizer, (CLOSE,))


# --- stop tokens ---

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
GEMMA = "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"  # noqa: E501
LLAMA2 = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"  # noqa: E501
PLAIN = "{% for m in messages %}### {{ m.role }}: {{ m.content }}\n{% endfor %}"
ONLY_USERS = "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"  # noqa: E501


def with_template(template, *tokens, special=True):
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(t, special=special, normalized=False) for t in tokens])
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("template", "tokens", "end"),
    [
        (CHATML, ("<|im_start|>", "<|im_end|>"), "<|im_end|>"),
        (GEMMA, ("<start_of_turn>", "<end_of_turn>"), "<end_of_turn>"),
        (LLAMA2, (), "<eos>"),
        (PLAIN, (), None),
        (CHATML, (), None),  # several tokens: none of them ends anything
        (ONLY_USERS, (), None),
        (None, (), None),
    ],
    ids=["chatml", "gemma", "llama 2", "plain", "not a token", "refuses answers", "no template"],
)
def test_the_end_of_a_turn_is_what_the_template_writes_after_an_answer(
    template, tokens, end, special
):
    tokenizer = with_template(template, *tokens, special=special)
    found = [tokenizer.convert_ids_to_tokens(i) for i in end_of_turn(tokenizer)]
    assert found == ([] if end is None else [end])


def test_every_end_that_anybody_names_stops_a_rollout():
    """Llama 3 names three in its generation config, and its tokenizer one of them; Qwen's base
    models name one, and their chats end with another."""
    tokenizer = with_template(CHATML, "<|im_start|>", "<|im_end|>")
    turn, eos = tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id
    several, one = SimpleNamespace(eos_token_id=[7, 8, eos]), SimpleNamespace(eos_token_id=9)
    assert stop_tokens(tokenizer, several, one) == (7, 8, eos, 9, turn)
    assert stop_tokens(tokenizer, None, SimpleNamespace(eos_token_id=None)) == (eos, turn)
    tokenizer.eos_token = None
    assert stop_tokens(tokenizer) == (turn,)
