"""All-reduces captured into a CUDA graph that is replayed."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
buffer = torch.ones(4096, device="cuda")
dist.all_reduce(buffer)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    dist.all_reduce(buffer)
for _ in range(10):
    graph.replay()
torch.cuda.synchronize()
print("done", flush=True)
del graph
dist.destroy_process_group()
