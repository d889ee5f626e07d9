"""A GRPO task that a two-layer model learns on a CPU in seconds: write the digit of the prompt."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from trl import GRPOConfig, GRPOTrainer

LENGTH = 8
GENERATIONS = 4


def tokenizer() -> PreTrainedTokenizerFast:
    vocab = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    for char in "0123456789: write":
        vocab.setdefault(char, len(vocab))
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            eos_token_id=1,
            pad_token_id=0,
        )
    )


def prompts(n: int) -> Dataset:
    return Dataset.from_list(
        [{"prompt": f"write {i % 4}: ", "digit": str(i % 4)} for i in range(n)]
    )


def share_of_digit(completions: list[str], digit: list[str], **_: Any) -> list[float]:
    return [text.count(d) / LENGTH for text, d in zip(completions, digit, strict=True)]


def plus_minus_one(completions: list[str], digit: list[str], **_: Any) -> list[float]:
    return [2 * share - 1 for share in share_of_digit(completions, digit)]


def trainer(path: Path, steps: int, reward: Any = share_of_digit, **changes: Any) -> GRPOTrainer:
    options: dict[str, Any] = {
        "output_dir": str(path),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 64,
        "per_device_eval_batch_size": 64,
        "num_generations": GENERATIONS,
        "max_completion_length": LENGTH,
        "generation_kwargs": {"min_new_tokens": LENGTH},
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "beta": 0.0,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": steps,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "seed": 0,
    }
    return GRPOTrainer(
        model=model(),
        args=GRPOConfig(**(options | changes)),
        reward_funcs=reward,
        train_dataset=prompts(256),
        eval_dataset=prompts(16),
        processing_class=tokenizer(),
    )
