#!/bin/bash
# Job script of `regatta submit` for a machine with Ethernet (Flux).
# Submit: mkdir -p out; save this as out/job.sh; flux batch out/job.sh
#
# The job's name in the queue.
# flux: --job-name=my-job
# `regatta launch` starts one agent per node, which starts its ranks.
# flux: --nodes=1
# Whole nodes with all their GPUs: ranks are bound to cores, GPUs and NICs of the node.
# flux: --exclusive
# Output of the ranks, merged; the output of each one is in the run folder.
# flux: --output=out/job.out

# Flux does not set this variable in batch scripts; regatta finds the nodes of the job by it.
FLUX_JOB_ID=$(flux getattr jobid) || exit
export FLUX_JOB_ID

# `exec`: signals of Flux reach regatta.
exec regatta map --check
