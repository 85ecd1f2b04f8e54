"""All-reduces, until one rank stops before the fifth."""

import os
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
for step in range(10):
    if step == 4 and dist.get_rank() == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1 << 18, dtype=torch.bfloat16, device="cuda"))
    torch.cuda.synchronize()
