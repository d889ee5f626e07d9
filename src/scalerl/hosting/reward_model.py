"""A reward model: a Hugging Face classifier with one output, which reads a conversation. It is
served as a chat model that replies "Score: x"."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from scalerl.errors import InputError
from scalerl.hosting.server import chat_completion, messages_from
from scalerl.models.chat import Chat
from scalerl.models.load import load_tokenizer, loading_errors, model_path, resolve_device


class RewardModel:
    """Scores one conversation at a time."""

    def __init__(self, name: str, path: str, *, dtype: str, device: str, columns: int) -> None:
        from transformers import AutoModelForSequenceClassification

        self.name, self.columns, path = name, columns, model_path(path)
        self.device = resolve_device(device)
        with loading_errors(path, False):
            self.model = AutoModelForSequenceClassification.from_pretrained(
                path, dtype=getattr(torch, dtype)
            )
        if self.model.config.num_labels != 1:
            raise InputError(
                f"{path} has {self.model.config.num_labels} outputs: a reward model has one"
            )
        self.model.to(self.device).eval()
        self.tokenizer = load_tokenizer(path)
        self.chat = Chat(self.tokenizer)
        self._one = threading.Lock()

    def close(self) -> None:
        """Nothing to end."""

    @torch.no_grad()
    def reply(self, body: Any) -> dict[str, Any]:
        messages = messages_from(body)
        text = "\n".join(m["content"] for m in messages)
        if self.chat.exists:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        ids = self.tokenizer(text, add_special_tokens=not self.chat.exists)["input_ids"]
        if not 0 < len(ids) <= self.columns:
            raise InputError(f"the messages have {len(ids)} tokens, of at most {self.columns}")
        with self._one:
            began = time.perf_counter()
            score = float(self.model(torch.tensor([ids], device=self.device)).logits[0, 0])
            seconds = time.perf_counter() - began
        return chat_completion(self.name, f"Score: {score:.6f}", "stop", len(ids), 0, seconds)
