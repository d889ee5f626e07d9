"""What is said of a cluster that does not let a run in, and how its parts talk; without Ray."""

import io
import multiprocessing
import pickle
import sys
import threading

from scalerl.pipeline import messages as m
from scalerl.placement import ray_cluster
from scalerl.placement.ray_cluster import _unreachable
from scalerl.placement.worker_actor import WorkerActor

WHERE = "ray://head:10001"


def test_a_busy_cluster_is_not_called_missing():
    said = _unreachable(WHERE, ConnectionAbortedError("Initialization failure from server:\nlate"))
    assert f"the Ray cluster at {WHERE} is there" in said and "placement.address=auto" in said
    said = _unreachable(WHERE, ConnectionError("ray client connection timeout"))
    assert f"there is no Ray cluster at placement.address={WHERE}" in said


def test_messages_share_a_call_and_what_cannot_travel_is_said_in_a_line(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "restored afterwards")
    actor = WorkerActor("checker 0")
    actor.deliver(pickle.dumps(["one", "two"]))
    assert [actor.connection.recv(), actor.connection.recv()] == ["one", "two"]
    for said in ("three", "four"):
        actor.connection.send(said)
    assert pickle.loads(actor.collect(1.0, 0.0)) == ["three", "four"]
    actor.connection.send(lambda: "code does not travel")
    (failed,) = pickle.loads(actor.collect(1.0, 0.0))
    assert isinstance(failed, m.WorkerFailed) and "pickle" in failed.reason


def test_a_long_wait_for_ray_is_announced(monkeypatch):
    said = threading.Event()

    class Output(io.StringIO):
        def write(self, text):
            said.set()
            return super().write(text)

    monkeypatch.setattr(ray_cluster, "FIRST_WORD_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", output := Output())
    with ray_cluster.announced("Ray's processes on this machine to start"):
        assert said.wait(60)
    assert output.getvalue().startswith(
        "waiting for Ray's processes on this machine to start (0 s)"
    )
