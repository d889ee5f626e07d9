"""Tests every restriction of a sandbox before a program is run in it, from inside and outside.

Inside, `inside/selftest.py` tries what a program must not be able to do. Outside, this module reads
user, capabilities and namespaces of the process from the kernel, not from the process itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

from scalerl.tasks.inside import wire
from scalerl.tasks.sandbox import NOBODY, Namespaces, as_file, hidden, identity, packed
from scalerl.tasks.sandboxed_process import Limits, SandboxedProcess

#: Time limit of the self-test, generous for a busy machine.
SECONDS = 30.0
#: The five capability sets in /proc/PID/status.
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def why_unusable(sandbox: Namespaces) -> str:
    """Why this sandbox cannot be used here; empty if the self-test finds every restriction."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    for program in ("bwrap" if sandbox.name == "bubblewrap" else "unshare", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    try:
        with as_file(packed("selftest", {"read_only": list(hidden())}, Limits())) as job:
            running = sandbox.start(Limits(), job, subprocess.PIPE)
        with running:
            found = holes(running)
    except OSError as error:
        return str(error)
    if found is None:
        # The last line on standard error is usually the message of bwrap or unshare.
        words = running.read["errors"].decode(errors="replace").split("\n")
        return next((w for w in reversed(words) if w.strip()), "does not start")
    return f"holes: {', '.join(found)}" if found else ""


def holes(running: SandboxedProcess) -> list[str] | None:
    """Missing restrictions, found inside and outside; None if the sandbox did not start."""
    late = threading.Timer(SECONDS, running.process.kill)
    late.start()
    try:
        inside = wire.decode(wire.receive(running.streams["output"].fileno()))
    except (EOFError, ValueError):
        return None
    finally:
        late.cancel()
    return [*map(str, inside), *outside(running.process.pid)]


def outside(command: int) -> list[str]:
    """What is wrong with the processes that a command started, according to the kernel."""
    every = {pid: status(pid) for pid in below(command)}
    # NSpid has one process id for each nested pid namespace.
    here = len(status("self")["NSpid"].split())
    inside = [pid for pid, facts in every.items() if len(facts["NSpid"].split()) > here]
    found = []
    if len(inside) != 1:
        found.append(f"{len(inside)} processes have a pid namespace of their own, not one")
    wanted = {str(identity().get("user", NOBODY))}
    for pid, facts in every.items():
        if "user" in identity() and set(facts["Uid"].split() + facts["Gid"].split()) != wanted:
            found.append(f"{facts['Name']} is root outside")
        if "user" in identity() and facts["Groups"].strip():
            found.append(f"{facts['Name']} has groups of root")
        if pid not in inside or facts["State"].startswith("Z"):
            continue  # a zombie has no capabilities or filter any more
        if any(int(facts[kind], 16) for kind in CAPABILITIES):
            found.append("capabilities are left")
        if facts["NoNewPrivs"] != "1":
            found.append("privileges can be gained")
        if facts["Seccomp"] != "2":
            found.append("system calls are not filtered")
        if len(Path(f"/proc/{pid}/net/dev").read_text().splitlines()) > 3:  # a heading, and lo
            found.append("network devices are in sight")
    return found


def below(pid: int) -> list[int]:
    """The process ids of a process and all its descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int(status(path.name)["PPid"])
        except OSError:
            continue  # it has just ended
    found = [pid]
    for parent in found:
        found += [child for child, its in parents.items() if its == parent]
    return found


def status(pid: int | str) -> dict[str, str]:
    """The fields of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
