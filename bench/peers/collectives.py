"""Times gloo's collectives on f32, as bench/src/bin/collectives does: rank 0 prints one line
"operation bytes seconds" per round, and "operation:first" for the first call; maximum over the
ranks.

Arguments: names, comma-separated, then "warm-ups rounds calls bytes" for each size."""

import sys
import time

import torch
import torch.distributed as dist


def collective(name, data, out, parts):
    root = dist.get_rank() == 0
    part = parts[0]
    return {
        "all-reduce": lambda: dist.all_reduce(data),
        "all-gather": lambda: dist.all_gather_into_tensor(out, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, data),
        "broadcast": lambda: dist.broadcast(data, 0),
        "reduce": lambda: dist.reduce(data, 0),
        "gather": lambda: dist.gather(part, parts if root else None),
        "scatter": lambda: dist.scatter(part, parts if root else None),
        "all-to-all": lambda: dist.all_to_all_single(out, data),
        "barrier": dist.barrier,
    }[name]


def timed(run, label, calls):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    mine = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"{label} {mine.item():.9f}", flush=True)


dist.init_process_group("gloo")
torch.set_num_threads(1)
ranks = dist.get_world_size()
numbers = [int(a) for a in sys.argv[2:]]
for name in sys.argv[1].split(","):
    for warm_ups, rounds, calls, size in zip(*(numbers[i::4] for i in range(4))):
        count = size // 4 // ranks * ranks
        data, out = torch.ones(count), torch.empty(count)
        parts = list(torch.empty(count).chunk(ranks)) if count else [torch.empty(0)] * ranks
        run = collective(name, data, out, parts)
        try:
            timed(run, f"{name}:first {size}", 1)
            for _ in range(warm_ups - 1):
                run()
            for _ in range(rounds):
                timed(run, f"{name} {size}", calls)
        except RuntimeError as error:
            if dist.get_rank() == 0:
                print(f"# {name}: {str(error).splitlines()[0]}", flush=True)
            break
dist.barrier()
dist.destroy_process_group()
