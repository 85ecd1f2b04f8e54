"""Horovod: initialises by Gloo and sums over all ranks."""

import horovod.torch as hvd
import torch

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum, name="sum").item()
assert total == size * (size + 1) / 2, total
print(f"horovod rank {rank} of {size} local {hvd.local_rank()}", flush=True)
hvd.shutdown()
