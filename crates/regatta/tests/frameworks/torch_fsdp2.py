"""PyTorch FSDP2: parameters are sharded, gradients reduce-scattered."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()

model = torch.nn.Linear(2, 2 * size, bias=False)
torch.nn.init.zeros_(model.weight)
mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
fully_shard(model, mesh=mesh)
assert model.weight.to_local().shape == (2, 2), "not sharded"
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
# The gradient of rank r is r + 1; the mean over all ranks is (size + 1) / 2.
model(torch.full((1, 2), float(rank + 1))).sum().backward()
optimizer.step()
weight = model.weight.full_tensor()
assert torch.equal(weight, torch.full((2 * size, 2), -(size + 1) / 2)), weight
print(f"fsdp2 rank {rank} of {size} local {os.environ['LOCAL_RANK']}", flush=True)
dist.barrier()
dist.destroy_process_group()
