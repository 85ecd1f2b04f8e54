#!/bin/sh
# Starts torchrun on one node, as a rank of `regatta launch --ranks-per-node 1`, which sets the
# variables: sh torchrun.sh WORKERS_PER_NODE program.py ARGUMENTS
exec torchrun --nnodes "$GROUP_WORLD_SIZE" --node-rank "$GROUP_RANK" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" --nproc-per-node "$@"
