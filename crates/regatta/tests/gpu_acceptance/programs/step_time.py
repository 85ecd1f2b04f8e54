"""Steps of a transformer with DistributedDataParallel: in turn some that the profiler plug-in records and
some for which the recording is paused. Prints the median time of both."""

import ctypes
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
plugin = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])


def step():
    start = time.perf_counter()
    model(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    return time.perf_counter() - start


for _ in range(10):
    step()
times = {True: [], False: []}
for block in range(int(sys.argv[1])):
    recorded = block % 2 == 0
    plugin.regatta_profiler_resume() if recorded else plugin.regatta_profiler_pause()
    dist.barrier()
    torch.cuda.synchronize()
    times[recorded] += [step() for _ in range(3)]
if dist.get_rank() == 0:
    on, off = (1e3 * statistics.median(times[recorded]) for recorded in (True, False))
    mean = [1e3 * statistics.mean(times[recorded]) for recorded in (True, False)]
    print(f"steps {len(times[True])} recorded {on:.3f} ms paused {off:.3f} ms {100 * (on / off - 1):+.2f} % "
          f"means {mean[0]:.3f} {mean[1]:.3f} ms", flush=True)
dist.destroy_process_group()
