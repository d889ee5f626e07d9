"""Optional CPU accelerator for Llama-shaped models in float32: loading, decoding, training passes.

Everything here computes the numbers of the model's own forward pass, to rounding, and is compared
with it before it is used. A model or a machine that does not qualify gets None from the
constructors (`LlamaDecoder`, `CDecoder`, `PackedLlama`, `BareConfig`) and goes through Transformers
and torch instead: without interest in speed on CPUs, skip this package.

    bare.py                        a Llama without Transformers, which takes seconds to import
    decode.py, c_decode.py         decoding, in torch and in C
    packed.py, packing.py          training passes over packed rows that share their prompts
    torch_kernels.py, c_kernels.py norm, SwiGLU and attention of these passes, with their gradients
    fuse.py, shape.py              fused weights; which models qualify
    library.py, csrc/              the C sources, compiled once per machine and cached

One switch, the environment variable SCALERL_CPU:

    auto    C kernels where the machine has a C compiler, else torch (the default)
    torch   never compile: the same passes in torch
    off     the model's own forward pass for everything
"""

from __future__ import annotations

import os

from scalerl.errors import InputError

SWITCH = "SCALERL_CPU"
#: The switch of version 0.1: "0" meant `torch`. It is read until version 0.3.
OLD_SWITCH = "SCALERL_NATIVE"


def cpu_mode() -> str:
    """The value of the switch: "auto", "torch" or "off".

    >>> os.environ["SCALERL_CPU"] = "torch"
    >>> cpu_mode()
    'torch'
    >>> del os.environ["SCALERL_CPU"]
    """
    mode = os.environ.get(SWITCH)
    if mode is None:
        return "torch" if os.environ.get(OLD_SWITCH) == "0" else "auto"
    if mode not in ("auto", "torch", "off"):
        raise InputError(f"{SWITCH}={mode!r} is not a mode: set auto, torch or off, or unset it")
    return mode
