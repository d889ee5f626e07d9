"""What the fork server imports before its first fork, and what it does not listen to."""

import signal

for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, ())

import scalerl.engine.local  # noqa: E402
import scalerl.placement.checker_process  # noqa: E402
import scalerl.placement.part_processes  # noqa: E402
import scalerl.trainer.local  # noqa: E402, F401
