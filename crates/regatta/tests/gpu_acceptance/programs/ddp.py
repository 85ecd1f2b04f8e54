"""DistributedDataParallel over NCCL, as a user would write it."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
torch.manual_seed(0)
layers = [torch.nn.Linear(1024, 1024), torch.nn.GELU()] * 1
layers += [torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)] * 1
layers += [torch.nn.Linear(1024, 2000), torch.nn.GELU(), torch.nn.Linear(2000, 10)]
model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), bucket_cap_mb=8)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(12):
    loss = model(torch.randn(32, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
torch.cuda.synchronize()
print(f"loss {mean.item() / dist.get_world_size():.4f}", flush=True)
dist.destroy_process_group()
