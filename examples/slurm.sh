#!/bin/bash
# A run on the nodes of a SLURM job, one or many:
#
#   sbatch examples/slurm.sh scalerl my.toml --out /shared/runs/first
#   sbatch examples/slurm.sh --resume /shared/runs/first
#
# The arguments are those of `scalerl train`. Every node needs the same environment (activate it
# below) and must see the model and the run's directory. Not run on a real SLURM cluster.
#
#SBATCH --job-name=scalerl
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
# Five minutes before the time is up: the run writes a checkpoint and ends.
#SBATCH --signal=B:TERM@300
set -euo pipefail

# source /shared/environment/bin/activate

# A token for this job alone. Ray asks for one by default from 2.61 on; all of its ports are open to
# the network, and the token is not encrypted there: the nodes should be in a private network.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(openssl rand -hex 32)

# Two ports that follow from the job's number: jobs that share a node must not meet. Ray's other
# ports are chosen by itself; a firewall between the nodes has to let all of them through.
port=$((20000 + 2 * (SLURM_JOB_ID % 10000)))
nodes=$SLURM_JOB_NUM_NODES
# From SLURM 22.05 on, srun does not take --cpus-per-task from sbatch.
cpus=${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}
# Said outright: Ray would count all cores and GPUs of a node, not those of the job.
resources=("--num-cpus=$cpus" "--num-gpus=${SLURM_GPUS_ON_NODE:-0}")
# Ray's files. The path is short: that of a Unix socket has room for a hundred characters.
files=/tmp/ray-$SLURM_JOB_ID
on_all="srun --overlap --nodes=$nodes --ntasks=$nodes"
on_one=(srun --overlap --nodes=1 --ntasks=1 "--cpus-per-task=$cpus")

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ip=$("${on_one[@]}" -w "$head" hostname -I | cut -d ' ' -f 1)
address=$ip:$port

# Waits until so many nodes have joined, instead of a time that is too short some day.
wait_for() {
    "${on_one[@]}" -w "$head" python - "$address" "$1" <<'PYTHON'
import sys, time, ray

address, wanted, joined = sys.argv[1], int(sys.argv[2]), 0
deadline = time.monotonic() + 600
while joined < wanted:
    try:
        if not ray.is_initialized():
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        joined = sum(node["Alive"] for node in ray.nodes())
    except Exception as error:  # the head is not up yet; Ray raises all kinds
        print(f"waiting for the head: {str(error).splitlines()[0]}", flush=True)
    if time.monotonic() > deadline:
        sys.exit(f"{joined} of {wanted} nodes have joined Ray within 10 minutes")
    time.sleep(1)
PYTHON
}

# Whatever happens, Ray ends with the script. (`ray stop` would also end that of other jobs.)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; $on_all rm -rf "$files"' EXIT

"${on_one[@]}" -w "$head" ray start --head --block --node-ip-address="$ip" --port="$port" \
    --ray-client-server-port=$((port + 1)) --include-dashboard=false \
    --temp-dir="$files" "${resources[@]}" &
wait_for 1

if [ "$nodes" -gt 1 ]; then
    others=$((nodes - 1))
    srun --overlap --nodes=$others --ntasks=$others "--cpus-per-task=$cpus" --exclude="$head" \
        ray start --block --address="$address" "${resources[@]}" &
    wait_for "$nodes"
fi

# In the background: bash handles a signal only when no command runs in the foreground.
"${on_one[@]}" -w "$head" scalerl train "$@" placement.backend=ray "placement.address=$address" &
run=$!
trap 'kill -TERM "$run"' TERM INT
code=0
wait "$run" || code=$?
if kill -0 "$run" 2>/dev/null; then # a signal has ended the first wait, not the run
    code=0
    wait "$run" || code=$?
fi
exit "$code"
