"""Every collective of torch.distributed, sub-groups, point-to-point messages and a CUDA graph."""

import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()


def data(count, dtype=torch.float32):
    return torch.ones(count, dtype=dtype, device="cuda")


for count, dtype in [(1, torch.float32), (1000, torch.bfloat16), (1 << 20, torch.float16), (77, torch.int64)]:
    dist.all_reduce(data(count, dtype))
    dist.broadcast(data(count, dtype), src=size - 1)
    dist.reduce(data(count, dtype), dst=0)
    dist.all_gather_into_tensor(data(count * size, dtype), data(count, dtype))
    dist.reduce_scatter_tensor(data(count, dtype), data(count * size, dtype))
for _ in range(5):
    dist.all_to_all_single(data(64 * size), data(64 * size))
for repetition in range(3):
    right, left = (rank + 1) % size, (rank - 1) % size
    requests = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, data(2048), right), dist.P2POp(dist.irecv, data(2048), left),
    ])
    for request in requests:
        request.wait()
pair = dist.new_group([0, 1])
if rank < 2:
    for _ in range(7):
        dist.all_reduce(data(333), group=pair)
buffer = data(4096)
dist.barrier()
torch.cuda.synchronize()
print("done", flush=True)
dist.destroy_process_group()
