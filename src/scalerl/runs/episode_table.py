"""Entries of the index of episodes as an array of numpy: the columns, and which are whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scalerl.runs.episode_entries import CONSTANT, ENTRY_BYTES, WEIGHTS

#: One entry, as `scalerl.runs.episode_entries` packs it.
ENTRY = np.dtype(
    [
        ("offset", "<u8"),  # position of the line in its file
        ("prompt", "<u8"),  # hash of the prompt's id
        ("task", "<u8"),  # hash of the task's name
        ("size", "<u4"),  # bytes of the line with its end
        ("crc", "<u4"),  # CRC-32 of the line without its end
        ("step", "<i4"),
        ("reward", "<f4"),  # nan: could not be scored
        ("length", "<u4"),  # tokens that the policy sampled or the length control forced
        ("turns", "<u2"),
        ("tool_failures", "<u2"),
        ("finish", "u1"),  # number in FINISHES
        ("correct", "u1"),  # number in CORRECT
        ("unused", "<u2"),  # 0
        ("check", "<u4"),  # weighted sum of the words before it
    ]
)
Entries = npt.NDArray[np.void]


def entries_from(data: bytes) -> Entries:
    """The entries in these bytes; those of a torn last one are left out."""
    return np.frombuffer(data, ENTRY, len(data) // ENTRY_BYTES)


def are_whole(entries: Entries) -> npt.NDArray[np.bool_]:
    """Which entries have the check sum of their content.

    >>> from scalerl.runs.episode_entries import entry_of
    >>> are_whole(entries_from(entry_of({"step": 1}, b"{}", 0) + bytes(ENTRY_BYTES)))
    array([ True, False])
    """
    words = np.ascontiguousarray(entries).view("<u4").reshape(len(entries), ENTRY_BYTES // 4)
    sums = (words[:, :-1] * np.asarray(WEIGHTS, np.uint32)).sum(axis=1, dtype=np.uint32)
    whole: npt.NDArray[np.bool_] = entries["check"] == sums + np.uint32(CONSTANT)
    return whole
