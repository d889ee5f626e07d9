"""A tokenizer without Transformers: `tokenizer.json`, read by the `tokenizers` library.

Importing Transformers takes seconds in every process of a run. Only models without a chat template
qualify, such as the shipped ones.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
#: Keys of tokenizer_config.json that name a special token.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
           "mask_token")  # fmt: skip
#: Other keys that do not change any token. A tokenizer with a key outside both lists is left to
#: Transformers.
HARMLESS = {"clean_up_tokenization_spaces", "model_input_names", "model_max_length", "padding_side",
            "tokenizer_class", "backend", "is_local", "local_files_only"}  # fmt: skip


class BareTokenizer:
    """The part of `PreTrainedTokenizerFast` that a run uses."""

    chat_template = None

    @staticmethod
    def from_directory(path: str) -> BareTokenizer | None:
        """The tokenizer in a directory; None where only Transformers can read it."""
        folder = Path(path)
        try:
            settings = json.loads((folder / SETTINGS).read_text())
            plain = (
                settings["tokenizer_class"] in ("PreTrainedTokenizerFast", "TokenizersBackend")
                and settings["clean_up_tokenization_spaces"] is False
                and not {*settings} - {*SPECIAL} - HARMLESS
                and all(isinstance(settings.get(name, ""), str) for name in SPECIAL)
                and not any(folder.glob("*chat_template*"))
            )
            return BareTokenizer(folder, settings) if plain else None
        except Exception:  # `tokenizers` raises bare Exception; Transformers then names the problem
            return None

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.folder = folder
        self.backend_tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        named = {name: settings[name] for name in SPECIAL if settings.get(name)}
        ids = {name: self.backend_tokenizer.token_to_id(token) for name, token in named.items()}
        if None in ids.values():
            raise ValueError("a special token is not in the vocabulary")
        self.all_special_ids = list(dict.fromkeys(ids.values()))
        self.eos_token_id = ids.get("eos_token")

    def __call__(
        self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = False
    ) -> dict[str, list[int]]:
        self.backend_tokenizer.encode_special_tokens = split_special_tokens
        found = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": found.ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, token: int) -> str | None:
        found: str | None = self.backend_tokenizer.id_to_token(token)
        return found

    def get_vocab(self) -> dict[str, int]:
        found: dict[str, int] = self.backend_tokenizer.get_vocab()
        return found

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        found: dict[int, Any] = self.backend_tokenizer.get_added_tokens_decoder()
        return found

    def save_pretrained(self, folder: Path) -> None:
        for name in (TOKENIZER, SETTINGS):
            shutil.copyfile(self.folder / name, folder / name)
