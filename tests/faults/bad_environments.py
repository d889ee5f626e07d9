"""The game `tiny-tools` in a place where everything goes wrong now and then."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from scalerl.environments.games.lookups import Lookups

sys.path.insert(0, str(Path(__file__).parents[1] / "environments"))
from fault_environments import fault

#: Sockets and programs that environments have opened and never close.
LEAKED = []


class BadLookups(Lookups):
    """Replies to some turns by hanging, ending its process, raising, lying or talking: which ones
    follows from the prompt, the seed and the turns so far. `leaks` is the share of episodes that
    leave a socket and a program behind."""

    def __init__(self, leaks=0.0, **shares):
        super().__init__()
        self.leaks, self.shares, self.texts = leaks, shares, []

    async def reset(self, prompt, seed):
        self.about = (prompt.question, seed)
        if fault({"slow": self.leaks}, *self.about, "leak"):
            LEAKED.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            LEAKED.append(subprocess.Popen(["sleep", "100000"]))
        return await super().reset(prompt, seed)

    async def step(self, action):
        self.texts.append(action.text)
        found = fault(self.shares, *self.about, *self.texts)
        if found == "slow":
            await asyncio.sleep(0.2)
        elif found == "hangs":
            await asyncio.sleep(1e6)
        elif found == "blocks":
            time.sleep(1e6)
        elif found == "crashes":
            os._exit(3)
        elif found == "raises":
            raise ZeroDivisionError("no numbers today")
        elif found == "returns_bytes":
            return b"7"
        reply = await super().step(action)
        if found == "talks" and hasattr(reply, "messages"):
            return type(reply)(({"role": "tool", "content": "7 " * 50_000},))
        if found == "differs" and hasattr(reply, "messages"):
            return type(reply)(({"role": "tool", "content": str(time.monotonic_ns())},))
        return reply
