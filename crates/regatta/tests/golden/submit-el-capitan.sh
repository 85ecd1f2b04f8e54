#!/bin/bash
# Job script of `regatta submit` for El Capitan (Flux).
# Submit: mkdir -p jobs/train; save this as jobs/train/job.sh; flux batch jobs/train/job.sh
#
# The job's name in the queue.
# flux: --job-name=train
# `regatta launch` starts one agent per node, which starts its ranks.
# flux: --nodes=4
# Whole nodes with all their GPUs: ranks are bound to cores, GPUs and NICs of the node.
# flux: --exclusive
# Time limit.
# flux: --time-limit=28800s
# The bank that is charged.
# flux: --bank=guests
# The queue.
# flux: --queue=pbatch
# Jobs to wait for.
# flux: --dependency=afterok:ƒM7Zq9AKHno
# TERM before the time limit, so that the ranks can save.
# flux: --signal=TERM@120s
# Output of the ranks, merged; the output of each one is in the run folder.
# flux: --output=jobs/train/job.out

# Flux does not set this variable in batch scripts; regatta finds the nodes of the job by it.
FLUX_JOB_ID=$(flux getattr jobid) || exit
export FLUX_JOB_ID

# A run folder holds one run: a job that starts again uses the next one.
run=0
while [ -e "jobs/train/run-$run" ]; do run=$((run + 1)); done

# `exec`: signals of Flux reach regatta.
exec regatta launch --site el-capitan --run-dir "jobs/train/run-$run" \
    -- python train.py
