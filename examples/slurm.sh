#!/bin/bash
# Starts Ray on every node of a SLURM job and the run on the first. Not run on a real cluster.
# Every node needs the same environment and must see the model and the run's directory.
#SBATCH --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=32 --time=24:00:00
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(openssl rand -hex 32) RAY_USAGE_STATS_ENABLED=0
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=6379 --block &
sleep 20
srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$head" \
    ray start --address="$head:6379" --block &
sleep 20
srun --overlap --nodes=1 --ntasks=1 -w "$head" \
    scalerl train scalerl my.toml placement.backend=ray placement.address=auto \
    --out /shared/runs/first
