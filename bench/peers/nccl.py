"""PyTorch's NCCL collectives, timed like nccl-tests: warm-up, barrier, back-to-back calls,
one synchronisation. Run once per rank with a launcher's environment; rank 0 prints microseconds as JSON."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

WARMUP, ITERATIONS = 5, int(sys.argv[2])


def call(name, size, ranks):
    """The collective; the largest buffer has `size` bytes."""
    count = size // 4
    whole = torch.ones(max(count, 1), device="cuda")
    part = torch.ones(max(count // ranks, 1), device="cuda")
    all_parts = torch.ones(part.numel() * ranks, device="cuda")
    return {
        "all-reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all-gather": lambda: dist.all_gather_into_tensor(all_parts, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, all_parts),
    }[name]


def timed(work):
    """Mean over the ranks, in microseconds."""
    for _ in range(WARMUP):
        work()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(ITERATIONS):
        work()
    torch.cuda.synchronize()
    mean = torch.tensor([(time.perf_counter() - start) / ITERATIONS * 1e6], device="cuda")
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
times = {}
for name in ["all-reduce", "all-gather", "reduce-scatter", "broadcast"]:
    for size in map(int, sys.argv[1].split(",")):
        times[f"{name} {size}"] = timed(call(name, size, dist.get_world_size()))
if dist.get_rank() == 0:
    print("times " + json.dumps(times))
dist.destroy_process_group()
