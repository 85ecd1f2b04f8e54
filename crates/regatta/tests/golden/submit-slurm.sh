#!/bin/bash
# Job script of `regatta submit` for a machine with InfiniBand (Slurm).
# Submit: mkdir -p jobs/regatta-launch; save this as jobs/regatta-launch/job.sh; sbatch --parsable jobs/regatta-launch/job.sh
#
# The job's name in the queue.
#SBATCH --job-name=regatta-launch
# `regatta launch` starts one agent per node, which starts its ranks.
#SBATCH --nodes=2
# Whole nodes: ranks are bound to cores, GPUs and NICs of the whole node.
#SBATCH --exclusive
# All memory of the nodes.
#SBATCH --mem=0
# All GPUs of each node; a request per task would disable peer-to-peer copies.
#SBATCH --gpus-per-node=8
# The partition.
#SBATCH --partition=gpu
# TERM to this script before the time limit, so that the ranks can save.
#SBATCH --signal=B:TERM@120
# A failed job is not repeated.
#SBATCH --no-requeue
# The job survives the loss of a node, which a spare replaces.
#SBATCH --no-kill
# Output of the ranks, merged; the output of each one is in the run folder.
#SBATCH --output=jobs/regatta-launch/job.out
# A job that starts again keeps its earlier output.
#SBATCH --open-mode=append

# A run folder holds one run: a job that starts again uses the next one.
run=0
while [ -e "jobs/regatta-launch/run-$run" ]; do run=$((run + 1)); done

# `exec`: signals of Slurm reach regatta.
exec regatta launch --site infiniband --run-dir "jobs/regatta-launch/run-$run" \
    --spares 1 ./train
