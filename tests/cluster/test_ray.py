"""Parts as actors of a Ray cluster: `make cluster`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from cluster import ON_RAY, Raylets, actors_left, names, storm  # sets what Ray reads when imported
from faults import EVERY, Victim, kill, problems, scale
from faults import SMALL as FAULTS
from scalerl.errors import InputError
from scalerl.placement import ray_cluster
from scalerl.placement.ray_cluster import Needs, missing_resources
from scalerl.weights.interface import Layout
from scalerl.weights.ray_objects import PIECE_BYTES, RayWeights, _pieces, _views
from scalerl.weights.version_registry import VersionRegistry

pytestmark = pytest.mark.ray
NEEDS = Needs(generators=2, trainers=2, device="CPU", weights=1 << 20, model="",
              devices_per_generator=1)  # fmt: skip
SMALL = ["batch.prompts=4", "batch.generations=8", "validation.prompts=15", "validation.k=2",
         "validation.every=4", "checkpoint.every=2", "placement.generators=2",
         "placement.trainers=2"]  # fmt: skip


@pytest.fixture(scope="module")
def raylets():
    found = Raylets()
    yield found
    found.close()


@contextlib.contextmanager
def joined(raylets):
    import ray

    ray.init(address=raylets.address, log_to_driver=False, namespace="scalerl")
    yield ray
    ray.shutdown()


@pytest.fixture
def ray(raylets):
    with joined(raylets) as found:
        yield found


# -- what a cluster lacks -------------------------------------------------------------------------


def test_a_cluster_with_everything_lacks_nothing(ray):
    assert missing_resources(NEEDS) == []


def test_too_few_devices_and_too_small_a_store_are_a_line_each(ray):
    (line,) = missing_resources(replace(NEEDS, generators=9))
    assert line.startswith("the Ray cluster has 5 CPUs on 3 nodes, but 9 generators and 2 trainers")
    (line,) = missing_resources(replace(NEEDS, device="GPU"))
    assert line.startswith("the Ray cluster has 0 GPUs on 3 nodes") and "placement.trainers" in line
    found = missing_resources(replace(NEEDS, weights=100 << 20))
    assert len(found) == 3 and "object store" in found[0] and "300 MB" in found[0]


def test_all_devices_of_a_generator_are_on_one_node(ray):
    from ray.util import placement_group_table, remove_placement_group

    from scalerl.placement.ray_crew import _group

    two = replace(NEEDS, devices_per_generator=2, generators=1)
    assert missing_resources(two) == []
    (line,) = missing_resources(replace(two, generators=3))
    assert "3 generators of 2 CPUs each and 2 trainers need 8" in line
    (line,) = missing_resources(replace(two, devices_per_generator=3))
    assert line.startswith("no node of the Ray cluster has 3 CPUs: lower placement.devices_per_gen")
    group = _group([two.bundle(2)])
    assert group.wait(60)
    assert placement_group_table(group)["bundles"] == {0: {"CPU": 2.0}}
    remove_placement_group(group)


def test_a_model_that_nodes_do_not_see_is_named(ray):
    found = missing_resources(replace(NEEDS, model="/on/the/drivers/disk"))
    assert len(found) == 3
    assert "does not see model.path=/on/the/drivers/disk" in found[0] and "share" in found[0]


@contextlib.contextmanager
def stranger(raylets, folder, without, fake=None):
    """A node of its own environment: this one's packages, but for some; and one of another
    version."""
    base = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(base, check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.lower().startswith(without) and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    if fake is not None:
        name, version = fake
        (site / f"{name}-{version}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    node = subprocess.Popen(
        [str(folder / "bin" / "python"), "-m", "ray.scripts.scripts", "start",
         f"--address={raylets.address}", "--num-cpus=1", "--object-store-memory=100000000",
         "--block"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        node.terminate()
        node.wait(60)


def lines_of_four_nodes(ray):
    """What is missing, once the fourth node is there."""
    deadline = time.monotonic() + 120
    while len([n for n in ray.nodes() if n["Alive"]]) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return missing_resources(NEEDS)


@pytest.fixture
def no_path(monkeypatch):
    """Parts are given PYTHONPATH: with it, they would find our sources after all."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_a_node_with_another_version_is_named(raylets, ray, no_path, tmp_path):
    with stranger(raylets, tmp_path / "env", ("transformers-",), ("transformers", "4.0.0")):
        (line,) = lines_of_four_nodes(ray)
    assert "has transformers 4.0.0, this machine" in line
    assert "install the same version on every node" in line


def test_a_node_that_misses_a_package_is_named(raylets, ray, no_path, tmp_path):
    with stranger(raylets, tmp_path / "env", ("scalerl", "_editable")):
        (line,) = lines_of_four_nodes(ray)
    assert line.endswith("has no package scalerl: install scalerl[ray,train] there")


def test_a_checkpoint_directory_that_is_not_shared_is_one_line(raylets, tmp_path):
    """The driver has a disk of its own there (a namespace); the trainer does not see it."""
    out = tmp_path / "run"
    out.mkdir()
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
              f'mount -t tmpfs tmpfs {out} && exec "$@"', "sh"]  # fmt: skip
    if subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("mount namespaces are forbidden here")
    where = [f"placement.address={raylets.address}"]
    command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", *where,
               "placement.backend=ray", *SMALL, "--steps", "3", "--out", str(out)]  # fmt: skip
    done = subprocess.run([*inside, *command], capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "does not see it: a run over several machines needs a directory that all" in done.stderr


def test_no_such_address_and_another_ray_are_one_line(monkeypatch):
    import ray

    with pytest.raises(
        InputError, match=r"no Ray cluster at placement.address=127.0.0.1:9: .*local"
    ):
        ray_cluster.connect("127.0.0.1:9", NEEDS)
    monkeypatch.setattr(ray, "__version__", "2.9.0")
    with pytest.raises(InputError, match=r"Ray 2.9.0 is not supported: install ray>=2.60"):
        ray_cluster.import_ray()


# -- weights --------------------------------------------------------------------------------------


class Taker:
    def load(self, weights, version):
        self.weights = {n: w.clone() for n, w in weights.items()}
        self.version = version


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_whole_and_a_receiver_that_joins_pulls_the_newest(ray, dtype):
    layout = Layout(("a", "b"), ((3, 2), (5,)), dtype)
    channel = RayWeights(
        layout, ray.remote(num_cpus=0, max_concurrency=99)(VersionRegistry).remote()
    )
    first, taker = channel.receiver(), Taker()
    assert first.newest() == first.into(taker) == -1
    for version in range(3):
        sent = {"a": torch.full((3, 2), 1.5 + version), "b": torch.arange(5.0) + version}
        channel.sender().publish(version, sent)
    for receiver in (first, channel.receiver()):
        deadline = time.monotonic() + 30
        while receiver.newest() < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert receiver.into(taker) == 2 == taker.version
        assert all(torch.equal(taker.weights[n], sent[n].to(dtype)) for n in sent)
        receiver.close()


def test_pieces_are_small_and_each_tensor_is_looked_at_once(monkeypatch):
    from scalerl.weights import ray_objects

    monkeypatch.setattr(ray_objects, "PIECE_BYTES", 100)
    assert PIECE_BYTES >= 1 << 20
    shapes = {"a": (10,), "b": (20,), "c": (40,), "d": (3,), "e": (0,)}
    layout = Layout(tuple(shapes), tuple(shapes.values()), torch.float32)
    sent = {n: torch.randn(s) for n, s in shapes.items()}
    pieces = list(_pieces(layout, sent))
    assert [p.size for p in pieces] == [10, 20, 40, 3]
    assert all(torch.equal(w, sent[n]) for n, w in _views(layout, pieces))


# -- whole runs -----------------------------------------------------------------------------------


def train(out, *settings):
    command = [sys.executable, "-m", "scalerl", "train"]
    command += ["scalerl", "tiny", "placement.backend=ray", *SMALL, *settings, "--out", str(out)]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_AUTH_TOKEN"}
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=environment)  # fmt: skip


def left_behind():
    return [p.name for p in Path("/tmp").glob("scalerl-ray-*")]


def test_a_run_starts_a_cluster_of_its_own_and_leaves_nothing_of_it(tmp_path):
    before = left_behind()
    run = train(tmp_path / "run", "--steps", "4")
    _, err = run.communicate(timeout=600)
    assert run.returncode == 0, err
    said = [line for line in err.splitlines() if not line.startswith("waiting for")]
    assert not [line for line in said if "ray" in line.lower()], err
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").open()]
    assert [s["step"] for s in steps] == [1, 2, 3, 4]
    assert sorted(p.name for p in (tmp_path / "run/checkpoints/step_4").glob("optimiser*")) == [
        "optimiser-00000-of-00002.safetensors", "optimiser-00001-of-00002.safetensors",
    ]  # fmt: skip
    assert set(left_behind()) <= set(before)
    assert not subprocess.run(["pgrep", "-f", "scalerl-ray-"], stdout=subprocess.PIPE).stdout


def test_a_raylet_that_starts_slowly_is_waited_for(tmp_path):
    """Ray itself gives up after 30 s, and would again at each attempt on a busy machine."""
    run = train(tmp_path / "run", "--steps", "1")
    deadline = time.monotonic() + 300
    while (raylet := pid_of_ray(run.pid, b"/raylet")) is None:
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(raylet, signal.SIGSTOP)
    time.sleep(40)
    os.kill(raylet, signal.SIGCONT)
    while not (tmp_path / "run/steps.jsonl").exists():
        assert run.poll() is None, run.communicate()[1]
        assert pid_of_ray(run.pid, b"/raylet") == raylet, "the first one, and no other attempt"
        time.sleep(0.05)
    _, err = run.communicate(timeout=600)
    assert run.returncode == 0, err


def test_a_run_whose_driver_is_killed_goes_on_with_resume(tmp_path):
    run = train(tmp_path / "run", "--steps", "6")
    deadline = time.monotonic() + 300
    while not list((tmp_path / "run" / "checkpoints").glob("step_2")):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    run.send_signal(signal.SIGKILL)
    run.wait()
    again = subprocess.run(
        [sys.executable, "-m", "scalerl", "train", "--resume", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").open()]
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5, 6]
    assert not left_behind(), "what the killed one had left is swept up by the next"


def test_a_run_is_a_client_of_a_cluster_elsewhere(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    elsewhere = Raylets(client_port=port)
    try:
        where = f"placement.address=ray://127.0.0.1:{port}"
        command = [sys.executable, "-m", "scalerl", "train", "scalerl", "tiny", where,
                   "placement.backend=ray", *SMALL, "--steps", "4", "--out",
                   str(tmp_path / "run")]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert "raylet" not in done.stderr and "autoscaler" not in done.stderr, done.stderr
        steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").open()]
        assert [s["step"] for s in steps] == [1, 2, 3, 4]
        assert actors_left(elsewhere) == []
    finally:
        elsewhere.close()


def test_doctor_tries_a_cluster_out(raylets, capsys):
    from scalerl.cli import main

    assert main(["doctor", "--cluster", raylets.address]) == 0, capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["gate", "ok"], ["hand-over", "ok"], ["update", "ok"], ["kill", "ok"],
    ]  # fmt: skip
    assert "generator 0 died" in lines[3]


def pid_of_ray(run, program):
    """The pid of a process of the cluster that the process `run` has started; None without one."""
    mark = f"{ray_cluster.FOLDER}{run}-".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(program) and any(mark in word for word in words):
                return int(path.name)
    return None


@contextlib.contextmanager
def victim(out, *settings):
    run = Victim(out, [*FAULTS, *ON_RAY, *settings])
    run.begin()
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


def events_of(out, event):
    lines = [json.loads(line) for line in (out / "events.jsonl").open()]
    return [line["why"] for line in lines if line["event"] == event]


def test_a_run_outlives_the_processes_of_a_cluster_of_its_own(tmp_path, capsys):
    """It starts another cluster; in between, doctor calls it healthy."""
    from scalerl.cli import main

    out = tmp_path / "run"
    with victim(out, "placement.trainers=2") as run:
        for i, program in enumerate((b"/raylet", b"/gcs_server")):
            run.wait(lambda: len(names(run, "checker")) > 0, "the pids of all workers")
            assert main(["doctor", str(out)]) == 0
            said = capsys.readouterr().out
            assert "trainer rank 0 process" in said and "gone" not in said, said
            before = run.step
            run.wait(lambda before=before: run.step > before + EVERY, "a checkpoint")
            os.kill(pid_of_ray(run.process.pid, program), signal.SIGKILL)
            run.wait(lambda i=i: len(run.resumes) > i, "the way back")
            run.wait(lambda: run.step > run.resumes[-1] + 2, "the next steps")
            why = f"trainer is lost: Ray's {program.decode()[1:]} on this machine ended"
            assert events_of(out, "lost")[i] == why
        run.end()
    assert not (wrong := problems(run)), wrong
    assert not list(Path("/tmp").glob(f"{ray_cluster.FOLDER}{run.process.pid}-*"))


def test_a_run_whose_own_node_is_gone_says_so(tmp_path):
    out, own = tmp_path / "run", Raylets()
    try:
        with victim(out, f"placement.address={own.address}") as run:
            head = own.cluster.head_node.all_processes["raylet"][0].process.pid
            os.kill(head, signal.SIGKILL)
            assert run.process.wait(300) == 1
    finally:
        own.close()
    (why,) = events_of(out, "failed")
    assert why.startswith("the Ray node that this run is attached to") and "--resume" in why
    assert f"scalerl: {why}" in out.with_suffix(".log").read_text()


def test_the_folder_of_a_killed_run_is_removed(tmp_path):
    with victim(tmp_path / "run") as run:
        mine = f"{ray_cluster.FOLDER}{run.process.pid}-*"
        assert list(Path("/tmp").glob(mine))
    deadline = time.monotonic() + 120
    while list(Path("/tmp").glob(mine)):
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.faults
@pytest.mark.parametrize("channel", ["auto", "collective"])
def test_generators_join_and_leave_with_their_places(raylets, tmp_path, channel):
    from ray.util import placement_group_table

    where = [f"placement.address={raylets.address}", f"placement.weights={channel}"]
    with victim(tmp_path / "run", *where) as run:
        scale(run, 3)
        scale(run, 1)
        with joined(raylets) as ray:
            taken = [g for g in placement_group_table().values() if g["state"] == "CREATED"]
            assert len(taken) == 1 + 1, "the trainer and a generator; checkers have none"
            del ray
        scale(run, 2)
        run.end()
    assert not (wrong := problems(run) + actors_left(raylets)), wrong


@pytest.mark.faults
def test_a_run_outlives_generators_ranks_and_their_nodes(tmp_path):
    run = storm(tmp_path / "run", 4, seed=0)
    assert len(run.strikes) == 4 and all(s.by_itself for s in run.strikes)


@pytest.mark.faults
def test_a_run_with_adapters_outlives_them_too_and_proves_its_adapters_again(tmp_path):
    run = storm(tmp_path / "run", 4, seed=0, settings=["adapter.rank=4"])
    assert len(run.strikes) == 4 and all(s.by_itself for s in run.strikes)
    found = [json.loads(line) for line in (run.out / "events.jsonl").read_text().splitlines()]
    proofs = [e["step"] for e in found if "has proved that it generates" in (e.get("why") or "")]
    # Two generators at the start, one after each of their losses, both after each of the trainer's.
    assert len(proofs) >= 2 + 2 * 1 + 2 * 2 and max(proofs) > 0


def kill_a_rank(run):
    """With a checkpoint since the last time: generators are the same afterwards."""
    before, resumes = run.step, len(run.resumes)
    run.wait(lambda: run.step > before + EVERY, "a checkpoint")
    generators = {n: run.pid(n) for n in names(run, "generator")}
    assert len(generators) == 2
    kill(run.pid("trainer rank 1"))
    run.wait(lambda: len(run.resumes) > resumes, "the way back")
    run.wait(lambda: run.step > run.resumes[-1] + 2, "the next steps")
    assert {n: run.pid(n) for n in names(run, "generator")} == generators


def test_generators_outlive_the_trainer_and_take_the_weights_of_the_next(raylets, tmp_path):
    """The engine of a large model takes minutes to start: a rank's death does not end it."""
    with victim(tmp_path / "run", f"placement.address={raylets.address}") as run:
        kill_a_rank(run)
        kill_a_rank(run)
        run.end()
    assert not (wrong := problems(run) + actors_left(raylets)), wrong


# -- evaluations ----------------------------------------------------------------------------------


def evaluation(out, *settings):
    return [sys.executable, "-m", "scalerl", "eval", "tiny", "--task", "running-sums", "--prompts",
            "200", "--k", "8", "task.options.prompts=4000", *settings, "-o", str(out)]  # fmt: skip


def answers_in(out):
    found = [json.loads(line) for line in (out / "tiny/answers/step_0.jsonl").open()]
    return {(a["prompt"], a["n"]): a["answer"] for a in found}, len(found)


def test_an_evaluation_on_ray_goes_on_after_a_kill_with_the_same_answers(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    subprocess.run(evaluation(here), check=True, capture_output=True, timeout=600)
    on_ray = evaluation(there, "placement.backend=ray", "placement.generators=2")
    file = there / "tiny/answers/step_0.jsonl"
    with subprocess.Popen(on_ray, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
        deadline = time.monotonic() + 300
        while not (file.exists() and file.stat().st_size > 10_000):
            assert killed.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        killed.kill()
    before = file.read_bytes()
    assert 0 < before.count(b"\n") < 200 * 8, "killed in the middle"
    again = subprocess.run(on_ray, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr
    # Prompts with all their answers stay where they are: they are not generated again.
    whole = before.splitlines()[: before.count(b"\n") // 8 * 8]
    assert file.read_bytes().splitlines()[: len(whole)] == whole
    assert answers_in(there) == answers_in(here) and answers_in(there)[1] == 200 * 8


# -- environment workers --------------------------------------------------------------------------


def test_environment_workers_are_spread_over_the_nodes_and_outlive_one(raylets, tmp_path):
    where = [f"placement.address={raylets.address}", "placement.environment_processes=6"]
    run = Victim(tmp_path / "run", [*FAULTS, *ON_RAY, *where, "placement.trainers=1"], "tiny-guess")
    run.begin()
    try:
        run.wait(lambda: len(names(run, "checker")) == 6, "six environment workers")
        homes = {name: raylets.of(run.pid(name)) for name in names(run, "checker")}
        assert len({id(node) for node in homes.values()}) == 3, "on all three nodes"
        # A node without the trainer, so that the run need not go back.
        trainer = raylets.of(run.pid("trainer"))
        victim = next(n for n in raylets.nodes if n is not trainer)
        lost = {name: run.pid(name) for name, node in homes.items() if node is victim}
        assert lost
        raylets.lose(victim)
        before = run.step
        run.wait(lambda: run.step > before + 2, "the next steps")
        run.wait(lambda: all(run.pid(n) != pid for n, pid in lost.items()), "their replacements")
        run.end()
    finally:
        run.process.kill()
        run.process.wait()
    assert not (wrong := problems(run) + actors_left(raylets)), wrong
