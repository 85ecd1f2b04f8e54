"""PyTorch DDP: the gradients of all ranks are averaged."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(model.weight)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
# The gradient of rank r is r + 1; the mean over all ranks is (size + 1) / 2.
model(torch.full((1, 2), float(rank + 1))).sum().backward()
optimizer.step()
weight = model.module.weight.detach()
assert torch.equal(weight, torch.full((1, 2), -(size + 1) / 2)), weight
print(f"ddp rank {rank} of {size} local {os.environ['LOCAL_RANK']}", flush=True)
dist.barrier()
dist.destroy_process_group()
