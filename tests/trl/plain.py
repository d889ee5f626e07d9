"""A classifier under a plain `transformers.Trainer`: its accuracy rises over a few dozen steps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import EvalPrediction, Trainer, TrainingArguments

CLASSES = 8


class Points(Dataset[dict[str, torch.Tensor]]):
    """Classes given by a fixed random projection: the same for every split."""

    def __init__(self, n: int, seed: int) -> None:
        self.x = torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))
        weights = torch.randn(16, CLASSES, generator=torch.Generator().manual_seed(99))
        self.y = (self.x @ weights).argmax(dim=1)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "labels": self.y[i]}


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    right = np.argmax(prediction.predictions, axis=1) == prediction.label_ids
    return {"accuracy": float(right.mean())}


def trainer(path: Path, steps: int, **changes: Any) -> Trainer:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "output_dir": str(path),
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "per_device_train_batch_size": 32,
        "per_device_eval_batch_size": 256,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "max_steps": steps,
        "logging_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "seed": 0,
    }
    return Trainer(
        model=Classifier(),
        args=TrainingArguments(**(options | changes)),
        train_dataset=Points(4096, seed=1),
        eval_dataset=Points(1024, seed=2),
        compute_metrics=accuracy,
    )
