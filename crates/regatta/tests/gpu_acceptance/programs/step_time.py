"""Steps of a transformer with DistributedDataParallel; prints the median time of a step."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
model = torch.nn.TransformerEncoder(layer, 12).cuda().bfloat16()
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
data = torch.randn(8, 512, 768, device="cuda", dtype=torch.bfloat16)
times = []
for step in range(int(sys.argv[1])):
    start = time.perf_counter()
    model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
if dist.get_rank() == 0:
    print(f"median {1e3 * statistics.median(times[5:]):.3f} ms", flush=True)
dist.destroy_process_group()
