#!/bin/bash
# Job script of `regatta submit` for Polaris (PBS).
# Submit: mkdir -p jobs/train; save this as jobs/train/job.sh; qsub jobs/train/job.sh
#
# The job's name in the queue.
#PBS -N train
# One chunk per node: `regatta launch` starts one agent per node, which starts its ranks.
#PBS -l select=10:system=polaris
# Each chunk on its own node.
#PBS -l place=scatter
# Time limit.
#PBS -l walltime=01:00:00
# The project that is charged.
#PBS -A Catalyst
# The queue.
#PBS -q prod
# A failed job is not repeated.
#PBS -r n
# The environment of the submission, as with Slurm and Flux.
#PBS -V
# Both output streams in one file,
#PBS -j oe
# written while the job runs.
#PBS -k doe
# Output of the ranks, merged; the output of each one is in the run folder.
#PBS -o jobs/train/job.out
# The file systems that the job uses, mandatory; replace it with --directive.
#PBS -l filesystems=home:eagle

# PBS starts scripts in the home folder.
cd "$PBS_O_WORKDIR" || exit

# A run folder holds one run: a job that starts again uses the next one.
run=0
while [ -e "jobs/train/run-$run" ]; do run=$((run + 1)); done

# PBS sends no signal before the time limit: `timeout` sends TERM 120 s earlier, so that the
# ranks can save. `exec`: signals of PBS reach regatta.
exec timeout --preserve-status --signal=TERM 3480 \
    regatta launch --site polaris --run-dir "jobs/train/run-$run" \
    -- python train.py
