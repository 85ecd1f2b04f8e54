#!/bin/bash
# Job script of `regatta submit` for Alps (GH200) (Slurm).
# Submit: mkdir -p jobs/train; save this as jobs/train/job.sh; sbatch --parsable jobs/train/job.sh
#
# The job's name in the queue.
#SBATCH --job-name=train
# `regatta launch` starts one agent per node, which starts its ranks.
#SBATCH --nodes=2
# Whole nodes: ranks are bound to cores, GPUs and NICs of the whole node.
#SBATCH --exclusive
# All memory of the nodes.
#SBATCH --mem=0
# All GPUs of each node; a request per task would disable peer-to-peer copies.
#SBATCH --gpus-per-node=4
# Time limit.
#SBATCH --time=01:00:00
# The project that is charged.
#SBATCH --account=g123
# Jobs to wait for.
#SBATCH --dependency=afterok:100:101,afterany:99
# TERM to this script before the time limit, so that the ranks can save.
#SBATCH --signal=B:TERM@120
# A failed job is not repeated.
#SBATCH --no-requeue
# Output of the ranks, merged; the output of each one is in the run folder.
#SBATCH --output=jobs/train/job.out
# A job that starts again keeps its earlier output.
#SBATCH --open-mode=append
# Without it, FI_CXI_RDZV_PROTO=alt_read has no effect.
#SBATCH --network=disable_rdzv_get

# A run folder holds one run: a job that starts again uses the next one.
run=0
while [ -e "jobs/train/run-$run" ]; do run=$((run + 1)); done

# `exec`: signals of Slurm reach regatta.
exec regatta launch --site alps --run-dir "jobs/train/run-$run" \
    -- ./train
