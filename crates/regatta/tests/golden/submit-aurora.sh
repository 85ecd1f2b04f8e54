#!/bin/bash
# Job script of `regatta submit` for Aurora (PBS).
# Submit: mkdir -p jobs/train; save this as jobs/train/job.sh; qsub jobs/train/job.sh
#
# The job's name in the queue.
#PBS -N train
# One chunk per node.
#PBS -l select=2
# Each chunk on its own node.
#PBS -l place=scatter
# Time limit.
#PBS -l walltime=01:00:00
# The project that is charged.
#PBS -A Catalyst
# The queue.
#PBS -q debug
# Jobs to wait for.
#PBS -W depend=afterok:123.aurora-pbs
# A failed job is not repeated.
#PBS -r n
# The environment of the submission, as with Slurm and Flux.
#PBS -V
# Both output streams in one file,
#PBS -j oe
# written while the job runs.
#PBS -k doe
# Output of the ranks, merged.
#PBS -o jobs/train/job.out
# The file systems that the job uses, mandatory; replace it with --directive.
#PBS -l filesystems=home:flare

# PBS starts scripts in the home folder.
cd "$PBS_O_WORKDIR" || exit

# The master address and the settings of the site, for the ranks of all nodes.
eval "$(regatta env --site aurora --ranks-per-node 12 || echo exit 1)"
# Number of ranks, their cores, and what the settings of the site require of mpiexec.
options=$(regatta map --site aurora --ranks-per-node 12 --format pals) || exit

# PBS sends no signal before the time limit: `timeout` sends TERM 120 s earlier, so that the
# ranks can save. `exec`: signals of PBS reach regatta.
exec timeout --preserve-status --signal=TERM 3480 \
    mpiexec --envall $options regatta launch --site aurora --ranks-per-node 12 \
    -- python train.py
