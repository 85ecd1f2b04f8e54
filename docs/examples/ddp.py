"""Data-parallel training with PyTorch DDP, configured by environment variables only.

Started once per GPU by `regatta launch`, `srun` with `eval "$(regatta env)"`, or torchrun:
RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set. Without a GPU it uses gloo.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def select_device(local_rank):
    """The device of this rank, and the backend that moves its tensors."""
    for kind, backend in (("cuda", "nccl"), ("xpu", "xccl")):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            # With `--visibility own`, a rank sees one device.
            module.set_device(local_rank % module.device_count())
            return torch.device(kind, module.current_device()), backend
    return torch.device("cpu"), "gloo"


def train(args, device):
    """Trains on random samples, and checks the result."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, args.hidden_size), torch.nn.GELU(), torch.nn.Linear(args.hidden_size, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Every rank has its own samples of the same function.
    samples = torch.Generator().manual_seed(1 + rank)
    for step in range(1, args.steps + 1):
        inputs = torch.randn(256, 64, generator=samples).to(device)
        loss = (model(inputs) - inputs.square().mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == args.steps:
            dist.all_reduce(loss.detach_().div_(world))
            if rank == 0:
                print(f"step {step}: loss {loss.item():.5f}", flush=True)

    # The weights agree only if the gradients were reduced.
    low = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    high = low.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    assert torch.equal(low, high), "the ranks have different weights"
    if rank == 0:
        print(f"done: the weights of {world} ranks agree", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--hidden-size", type=int, default=1024)
    args = parser.parse_args()

    device, backend = select_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, device_id=None if backend == "gloo" else device)
    if dist.get_rank() == 0:
        print(f"world size {dist.get_world_size()}, backend {backend}, device {device} on rank 0", flush=True)
    train(args, device)
    dist.barrier()
    dist.destroy_process_group()
    # With gloo, PyTorch 2.15 sometimes aborts when Python exits, although all work is done.
    if backend == "gloo":
        os._exit(0)


main()
