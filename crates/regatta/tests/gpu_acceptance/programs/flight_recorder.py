"""Runs a program and writes what PyTorch's own flight recorder saw: calls by kind and message size.

    flight_recorder.py OUT.json PROGRAM.py
"""

import atexit
import collections
import json
import math
import os
import pickle
import runpy
import sys

os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = os.environ["TORCH_FR_BUFFER_SIZE"] = "100000"
import torch
import torch.distributed as dist

OUT, PROGRAM = sys.argv[1:3]
KINDS = {
    "all_reduce": "all-reduce", "allreduce_coalesced": "all-reduce", "all_reduce_barrier": "all-reduce",
    "broadcast": "broadcast", "reduce": "reduce", "_all_gather_base": "all-gather",
    "all_gather": "all-gather", "_reduce_scatter_base": "reduce-scatter",
    "all_to_all": "all-to-all", "send": "send", "recv": "receive",
}
BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Long": 8, "Int": 4, "Byte": 1, "Double": 8, "Char": 1, "Bool": 1}


def dump():
    from torch._C._distributed_c10d import _dump_nccl_trace

    entries = pickle.loads(_dump_nccl_trace())["entries"]
    found = collections.Counter()
    for entry in entries:
        name = entry["profiling_name"].removeprefix("nccl:").split(" ")[0]
        if name == "coalesced":
            continue
        sent = sum(math.prod(s) * BYTES[d] for s, d in zip(entry["input_sizes"], entry["input_dtypes"]))
        got = sum(math.prod(s) * BYTES[d] for s, d in zip(entry["output_sizes"], entry["output_dtypes"]))
        found[f"{KINDS[name]} {max(sent, got)}"] += 1
    with open(f"{OUT}.{os.environ['RANK']}", "w") as file:
        json.dump(found, file)


destroy = dist.destroy_process_group


def destroy_process_group(*arguments):
    # The recorder's entries end with the process groups.
    dump()
    destroy(*arguments)


dist.destroy_process_group = destroy_process_group
sys.argv = [PROGRAM]
runpy.run_path(PROGRAM, run_name="__main__")
