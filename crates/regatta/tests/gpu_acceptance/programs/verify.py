"""Collectives and messages of rank-dependent values, each result checked; several communicators at once."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()


def values(count, of):
    """Integers that f32 represents exactly, also their sums."""
    return (torch.arange(count, device="cuda") * 7 + of * 13) % 1000 * 1.0


def check(name, count, result, expected):
    if not torch.equal(result, expected):
        raise SystemExit(f"rank {rank}: {name} of {count}: wrong elements")


groups = [dist.group.WORLD, dist.new_group(list(range(size)))]
for count in [1, 3, 1000, 40_000, 300_001, 5_000_000]:
    for group in groups:
        total = sum(values(count, of) for of in range(size))
        every = torch.cat([values(count, of) for of in range(size)])
        result = values(count, rank)
        dist.all_reduce(result, group=group)
        check("all-reduce", count, result, total)
        result = torch.empty(count * size, device="cuda")
        dist.all_gather_into_tensor(result, values(count, rank), group=group)
        check("all-gather", count, result, every)
        result = torch.empty(count, device="cuda")
        dist.reduce_scatter_tensor(result, every * (rank + 1), group=group)
        check("reduce-scatter", count, result, values(count, rank) * (size * (size + 1) // 2))
        result = values(count, rank)
        dist.broadcast(result, src=size - 1, group=group)
        check("broadcast", count, result, values(count, size - 1))
        result = torch.empty(count * size, device="cuda")
        dist.all_to_all_single(result, every + rank, group=group)
        expected = torch.cat([values(count, rank) + of for of in range(size)])
        check("all-to-all", count, result, expected)
    result = torch.empty(count, device="cuda")
    operations = [
        dist.P2POp(dist.isend, values(count, rank), (rank + 1) % size),
        dist.P2POp(dist.irecv, result, (rank - 1) % size),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    check("message", count, result, values(count, (rank - 1) % size))
torch.cuda.synchronize()
print("loss 1.0", flush=True)
dist.destroy_process_group()
