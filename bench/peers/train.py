"""Trains GPT-2 without biases with PyTorch in single precision, as bench/src/bin/train trains it with
ours: says `ready`, then reads how many steps to take, and answers how many seconds each took.

Arguments: eager or compiled, the processors, then vocabulary, layers, heads, width, context, batch."""

import os
import sys

CPUS = [int(cpu) for cpu in sys.argv[2].split(",")]
os.sched_setaffinity(0, CPUS)
os.environ["OMP_NUM_THREADS"] = str(len(CPUS))

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, LAYERS, HEADS, WIDTH, CONTEXT, BATCH = (int(n) for n in sys.argv[3:9])
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


torch.set_num_threads(len(CPUS))
torch.set_num_interop_threads(1)
torch.manual_seed(1)
model = Model()
optimizer = optimizer_of(model)
parameters = list(model.parameters())
forward = torch.compile(model) if sys.argv[1] == "compiled" else model
streams = [torch.randint(VOCABULARY, (BATCH * CONTEXT + 1,)) for _ in range(BATCHES)]
batches = [(s[:-1].view(BATCH, CONTEXT), s[1:].view(BATCH, CONTEXT)) for s in streams]
done = 0


def steps(count):
    global done
    for _ in range(count):
        inputs, targets = batches[done % BATCHES]
        loss = forward(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1


steps(3)
print("ready", flush=True)
for line in sys.stdin:
    count = int(line)
    steps(2)
    start = time.perf_counter()
    steps(count)
    print((time.perf_counter() - start) / count, flush=True)
