"""Imported by the fork server before its first fork: what workers need, with signals ignored."""

import signal

# First, before the imports that take seconds: these signals are for the main process.
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, ())

import scalerl.engine.local  # noqa: E402
import scalerl.placement.environment_worker  # noqa: E402
import scalerl.placement.serve_workers  # noqa: E402
import scalerl.trainer.local  # noqa: E402, F401
