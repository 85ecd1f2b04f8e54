"""Trains GPT-2 without biases with PyTorch in single precision, as bench/src/bin/train trains it with
ours: says `ready` and the loss of the first step; then reads how many steps to take, and answers how
many seconds each took and, behind a bar, the loss of the last one.

Arguments: eager or compiled, the processors, then vocabulary, layers, heads, width, context, batch of
this process. Then, for one of several ranks, what they share: `data` (DistributedDataParallel) or
`zero3` (FSDP2); the environment says which rank it is and where all meet, and they talk by gloo."""

import datetime
import os
import sys

CPUS = [int(cpu) for cpu in sys.argv[2].split(",")]
os.sched_setaffinity(0, CPUS)
os.environ["OMP_NUM_THREADS"] = str(len(CPUS))

import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

COMPILED = sys.argv[1] == "compiled"
VOCABULARY, LAYERS, HEADS, WIDTH, CONTEXT, BATCH = (int(n) for n in sys.argv[3:9])
SPLIT = sys.argv[9] if len(sys.argv) > 9 else None
BATCHES = 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm2 = nn.LayerNorm(WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def attention(self, x):
        batch, sequence, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (p.view(batch, sequence, HEADS, width // HEADS).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, sequence, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * LAYERS) ** 0.5 if residual else 0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def optimizer_of(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, fused=True)


def shared(model):
    """What is called for a loss, by one rank or one of several."""
    if SPLIT == "data":
        model = nn.parallel.DistributedDataParallel(model)
    elif SPLIT == "zero3":
        return fully_sharded(model)
    return torch.compile(model) if COMPILED else model


def fully_sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        if COMPILED:
            layer.compile()
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


torch.set_num_threads(len(CPUS))
torch.set_num_interop_threads(1)
if SPLIT:
    # Longer than a compiler takes on one rank while the other waits.
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
torch.manual_seed(1)
model = Model()
forward = shared(model)
optimizer = optimizer_of(model)
parameters = list(model.parameters())
# Each rank has sequences of its own.
torch.manual_seed(2 + (dist.get_rank() if SPLIT else 0))
streams = [torch.randint(VOCABULARY, (BATCH * CONTEXT + 1,)) for _ in range(BATCHES)]
batches = [(s[:-1].view(BATCH, CONTEXT), s[1:].view(BATCH, CONTEXT)) for s in streams]
done = 0


def step():
    global done
    inputs, targets = batches[done % BATCHES]
    loss = forward(inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    done += 1
    return loss.detach()


def timed():
    start = time.perf_counter()
    loss = step()
    return time.perf_counter() - start, loss


first = step().item()
for _ in range(2):
    step()
print("ready", first, flush=True)
for line in sys.stdin:
    for _ in range(2):
        step()
    steps = [timed() for _ in range(int(line))]
    print(*(seconds for seconds, _ in steps), "|", steps[-1][1].item(), flush=True)
if SPLIT:
    dist.destroy_process_group()
