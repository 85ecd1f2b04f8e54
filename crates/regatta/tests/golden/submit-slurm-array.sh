#!/bin/bash
# Job script of `regatta submit` for a machine with InfiniBand (Slurm).
# Submit: mkdir -p jobs/regatta-train; save this as jobs/regatta-train/job.sh; sbatch --parsable jobs/regatta-train/job.sh
#
# The job's name in the queue.
#SBATCH --job-name=regatta-train
# `regatta launch` starts one agent per node, which starts its ranks.
#SBATCH --nodes=1
# Whole nodes: ranks are bound to cores, GPUs and NICs of the whole node.
#SBATCH --exclusive
# All memory of the nodes.
#SBATCH --mem=0
# All GPUs of each node; a request per task would disable peer-to-peer copies.
#SBATCH --gpus-per-node=8
# Time limit.
#SBATCH --time=01:00:00
# A signal to this script before the time limit: see its end.
#SBATCH --signal=B:USR1@120
# Back into the queue after a node failure or preemption.
#SBATCH --requeue
# The indices of the array's tasks, each a job of its own.
#SBATCH --array=0-9%2
# Output of the ranks, merged; the output of each one is in the run folder.
#SBATCH --output=jobs/regatta-train/job-%a.out
# A job that starts again keeps its earlier output.
#SBATCH --open-mode=append

# The task of the array.
task=$SLURM_ARRAY_TASK_ID

stop_ranks() {
    signalled=1
    [ -z "$ranks" ] || kill -TERM "$ranks"
}
# The time limit is near: the ranks save and exit with code 75.
trap 'limit=1; stop_ranks' USR1
# The job is cancelled.
trap stop_ranks TERM
regatta train --run-dir "jobs/regatta-train/task-$task/run" \
    tiny &
ranks=$!
# A signal before this line found no ranks.
[ -z "$signalled" ] || stop_ranks
wait "$ranks"
code=$?
# A signal interrupts `wait`, whose code is then more than 128.
while [ -n "$signalled" ] && [ "$code" -gt 128 ]; do
    signalled=
    wait "$ranks"
    code=$?
done
# 75: the work is not finished. The job continues where it stopped when it starts again.
if [ "$code" -eq 75 ] && [ -n "$limit" ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
