"""Trains GPT-2 without biases with PyTorch, as bench/src/bin/train does with Regatta: prints `ready`
and the loss of the first step; then, for each line with a number of steps, prints the seconds of each step
and the loss of the last one, as JSON.

With `TORCH_PRECISION=bf16`, autocast to bf16. Arguments: eager or compiled, CPUs, vocabulary size, layers, heads, hidden size, sequence length, batch size
per rank. For one of several ranks also the parallelism: `data` (DistributedDataParallel) or `zero3` (FSDP2);
rank and rendezvous are in the environment, and ranks communicate over gloo."""

import datetime
import json
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

WARM_UP = int(os.environ.get("TORCH_WARM_UP", "2"))
PRECISION = os.environ.get("TORCH_PRECISION", "f32")
COMPILED = sys.argv[1] == "compiled"
VOCAB_SIZE, LAYERS, HEADS, HIDDEN_SIZE, SEQ_LEN, BATCH = (int(n) for n in sys.argv[3:9])
PARALLELISM = sys.argv[9] if len(sys.argv) > 9 else None
BATCHES = 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN_SIZE, bias=False)
        self.qkv = nn.Linear(HIDDEN_SIZE, 3 * HIDDEN_SIZE, bias=False)
        self.proj = nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE, bias=False)
        self.norm2 = nn.LayerNorm(HIDDEN_SIZE, bias=False)
        self.up = nn.Linear(HIDDEN_SIZE, 4 * HIDDEN_SIZE, bias=False)
        self.down = nn.Linear(4 * HIDDEN_SIZE, HIDDEN_SIZE, bias=False)

    def attention(self, x):
        batch, seq_len, hidden_size = x.shape
        head_dim = hidden_size // HEADS
        qkv = self.qkv(x).split(hidden_size, dim=2)
        q, k, v = (p.view(batch, seq_len, HEADS, head_dim).transpose(1, 2) for p in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, seq_len, hidden_size))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB_SIZE, HIDDEN_SIZE)
        self.positions = nn.Embedding(SEQ_LEN, HIDDEN_SIZE)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN_SIZE, bias=False)
        self.head = nn.Linear(HIDDEN_SIZE, VOCAB_SIZE, bias=False)
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
        return F.cross_entropy(logits.view(-1, VOCAB_SIZE), targets.view(-1))


def make_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, fused=True)


def wrap(model):
    """The module to call for the loss: compiled, and data parallel if there are several ranks."""
    if PARALLELISM == "data":
        model = nn.parallel.DistributedDataParallel(model)
    elif PARALLELISM == "zero3":
        return wrap_fsdp(model)
    elif PARALLELISM:
        sys.exit(f"unknown parallelism {PARALLELISM}: expected data or zero3")
    return torch.compile(model) if COMPILED else model


def wrap_fsdp(model):
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
if PARALLELISM:
    # Longer than compilation takes on one rank while the other waits.
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
torch.manual_seed(1)
model = Model()
forward = wrap(model)
optimizer = make_optimizer(model)
parameters = list(model.parameters())
# Each rank has its own sequences.
torch.manual_seed(2 + (dist.get_rank() if PARALLELISM else 0))
streams = [torch.randint(VOCAB_SIZE, (BATCH * SEQ_LEN + 1,)) for _ in range(BATCHES)]
batches = [(s[:-1].view(BATCH, SEQ_LEN), s[1:].view(BATCH, SEQ_LEN)) for s in streams]
steps_done = 0


def step():
    global steps_done
    inputs, targets = batches[steps_done % BATCHES]
    with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16"):
        loss = forward(inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    steps_done += 1
    return loss.detach()


def timed_step():
    start = time.perf_counter()
    loss = step()
    return time.perf_counter() - start, loss


first = step().item()
for _ in range(WARM_UP):
    step()
print("ready", first, flush=True)
for line in sys.stdin:
    for _ in range(WARM_UP):
        step()
    steps = [timed_step() for _ in range(int(line))]
    report = {"steps": [{"seconds": seconds} for seconds, _ in steps], "loss": steps[-1][1].item()}
    print(json.dumps(report), flush=True)
if PARALLELISM:
    dist.destroy_process_group()
