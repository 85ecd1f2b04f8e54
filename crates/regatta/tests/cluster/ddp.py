"""Plain data-parallel training, configured by environment variables only."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert int(os.environ["LOCAL_RANK"]) < int(os.environ["LOCAL_WORLD_SIZE"])

torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    inputs = torch.randn(4, 8)
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# Every rank has its own data: the weights agree only if the gradients were reduced.
weight = model.module.weight.detach().clone()
all_weights = [torch.empty_like(weight) for _ in range(size)]
dist.all_gather(all_weights, weight)
assert all(torch.equal(weight, other) for other in all_weights)
print(f"rank {rank} of {size} agrees", flush=True)
# Without it, PyTorch occasionally aborts when other ranks exit first.
dist.barrier()
dist.destroy_process_group()
