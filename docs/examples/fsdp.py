"""Training with sharded parameters (PyTorch FSDP2, `fully_shard`, PyTorch 2.6 or newer).

Started once per GPU by `regatta launch`, `srun` with `eval "$(regatta env)"`, or torchrun:
RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set. Without a GPU it uses gloo.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def select_device(local_rank):
    """The device of this rank, and the backend that moves its tensors."""
    for kind, backend in (("cuda", "nccl"), ("xpu", "xccl")):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            # With `--visibility own`, a rank sees one device.
            module.set_device(local_rank % module.device_count())
            return torch.device(kind, module.current_device()), backend
    return torch.device("cpu"), "gloo"


class Block(torch.nn.Module):
    """A residual MLP block."""

    def __init__(self, size):
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)
        self.up, self.down = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def train(args, device):
    """Trains on random samples, and checks the result."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    size = args.hidden_size
    blocks = [Block(size) for _ in range(args.layers)]
    model = torch.nn.Sequential(*blocks, torch.nn.LayerNorm(size), torch.nn.Linear(size, 1)).to(device)
    mesh = init_device_mesh(device.type, (world,))
    # bf16 for computation and communication; the shards stay in f32.
    policy = MixedPrecisionPolicy() if device.type == "cpu" else MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    # Every rank has its own samples of the same function.
    samples = torch.Generator().manual_seed(1 + rank)
    for step in range(1, args.steps + 1):
        inputs = torch.randn(256, size, generator=samples).to(device)
        loss = (model(inputs).float() - inputs.square().mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == args.steps:
            dist.all_reduce(loss.detach_().div_(world))
            if rank == 0:
                print(f"step {step}: loss {loss.item():.5f}", flush=True)

    whole = sum(parameter.numel() for parameter in model.parameters())
    shard = sum(parameter.to_local().numel() for parameter in model.parameters())
    assert world == 1 or shard < whole, "the parameters are not sharded"
    if rank == 0:
        print(f"done: rank 0 of {world} holds {shard} of {whole} parameters", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
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
