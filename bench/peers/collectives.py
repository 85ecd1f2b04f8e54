"""Times gloo's collectives on f32, as bench/src/bin/collectives does: rank 0 prints one line
"operation bytes seconds" per size and round, maximum over the ranks."""

import sys
import time

import torch
import torch.distributed as dist

ROUNDS = 5


def collective(name, data, out, parts):
    if name == "all-reduce":
        return lambda: dist.all_reduce(data)
    if name == "all-gather":
        return lambda: dist.all_gather_into_tensor(out, parts[0])
    if name == "reduce-scatter":
        return lambda: dist.reduce_scatter_tensor(parts[0], data)
    return lambda: dist.broadcast(data, 0)


def timed(run, repeats):
    for _ in range(2):
        run()
    rounds = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        mine = torch.tensor([(time.perf_counter() - start) / repeats], dtype=torch.float64)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        rounds.append(mine.item())
    return rounds


dist.init_process_group("gloo")
torch.set_num_threads(1)
ranks = dist.get_world_size()
pairs = [int(a) for a in sys.argv[1:]]
for name in ["all-reduce", "all-gather", "reduce-scatter", "broadcast"]:
    for repeats, size in zip(pairs[::2], pairs[1::2]):
        count = size // 4
        data, out = torch.ones(count), torch.empty(count)
        parts = list(torch.empty(count // ranks * ranks).chunk(ranks))
        whole = data[: count // ranks * ranks]
        try:
            rounds = timed(collective(name, whole, out[: whole.numel()], parts), repeats)
        except RuntimeError as error:
            if dist.get_rank() == 0:
                print(f"# {name}: {str(error).splitlines()[0]}", flush=True)
            break
        if dist.get_rank() == 0:
            for seconds in rounds:
                print(f"{name} {size} {seconds:.9f}", flush=True)
dist.barrier()
dist.destroy_process_group()
