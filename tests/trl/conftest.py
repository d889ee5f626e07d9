"""These tests train real models: they are collected only where torch and TRL are installed."""

import os
from importlib.metadata import PackageNotFoundError, version

# Before torch is imported: a tiny model is slower on two contended threads than on one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

try:
    version("trl")  # not find_spec, which would find this very folder
except PackageNotFoundError:
    collect_ignore_glob = ["*.py"]
else:
    collect_ignore_glob = ["two_processes.py"]  # a script for torchrun: it trains when imported
