#!/bin/bash
# Job script of `regatta submit` for a machine with InfiniBand (PBS).
# Submit: mkdir -p jobs/train; save this as jobs/train/job.sh; qsub jobs/train/job.sh
#
# The job's name in the queue.
#PBS -N train
# One chunk per node: `regatta launch` starts one agent per node, which starts its ranks.
#PBS -l select=1:ngpus=4
# Whole nodes, each chunk on its own.
#PBS -l place=scatter:excl
# Time limit.
#PBS -l walltime=01:00:00
# PBS refuses other arrays.
#PBS -r y
# The environment of the submission, as with Slurm and Flux.
#PBS -V
# Both output streams in one file,
#PBS -j oe
# written while the job runs.
#PBS -k doe
# The indices of the array's tasks, each a job of its own.
#PBS -J 0-9
# Output of the ranks, merged; the output of each one is in the run folder.
#PBS -o jobs/train/job-^array_index^.out

# PBS starts scripts in the home folder.
cd "$PBS_O_WORKDIR" || exit

# The task of the array.
task=$PBS_ARRAY_INDEX

# A run folder holds one run: a job that starts again uses the next one.
run=0
while [ -e "jobs/train/task-$task/run-$run" ]; do run=$((run + 1)); done

# PBS sends no signal before the time limit: `timeout` sends TERM 120 s earlier, so that the
# ranks can save. `exec`: signals of PBS reach regatta.
exec timeout --preserve-status --signal=TERM 3480 \
    regatta launch --site infiniband --run-dir "jobs/train/task-$task/run-$run" \
    -- python train.py
