#!/bin/bash
# Job script of `regatta submit` for a machine with InfiniBand (PBS).
# Submit: mkdir -p jobs/regatta-bench; save this as jobs/regatta-bench/job.sh; qsub jobs/regatta-bench/job.sh
#
# The job's name in the queue.
#PBS -N regatta-bench
# One chunk per node: `regatta launch` starts one agent per node, which starts its ranks.
#PBS -l select=2:ngpus=4
# Whole nodes, each chunk on its own.
#PBS -l place=scatter:excl
# Time limit.
#PBS -l walltime=24:00:00
# Back into the queue after a node failure or preemption.
#PBS -r y
# The environment of the submission, as with Slurm and Flux.
#PBS -V
# Both output streams in one file,
#PBS -j oe
# written while the job runs.
#PBS -k doe
# Output of the ranks, merged; the output of each one is in the run folder.
#PBS -o jobs/regatta-bench/job.out

# PBS starts scripts in the home folder.
cd "$PBS_O_WORKDIR" || exit

# A run folder holds one run: a job that starts again uses the next one.
run=0
while [ -e "jobs/regatta-bench/run-$run" ]; do run=$((run + 1)); done

# PBS sends no signal before the time limit: `timeout` sends TERM 300 s earlier, so that the
# ranks can save. `exec`: signals of PBS reach regatta.
exec timeout --preserve-status --signal=TERM 86100 \
    regatta bench all-reduce -b 8 -e 1G --run-dir "jobs/regatta-bench/run-$run"
