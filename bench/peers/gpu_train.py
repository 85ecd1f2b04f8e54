"""The peer of bench/src/bin/gpu_train: GPT-2 or Llama training steps in PyTorch on a GPU.

Arguments: the model shape as JSON, and the mode of torch.compile (default or max-autotune). For every
line on standard input, which is a number of steps, it prints the seconds of each step as JSON.
"""
import json
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

shape = json.loads(sys.argv[1])
mode = sys.argv[2]
VOCAB, SEQ, LAYERS, HEADS, HIDDEN = (
    shape[k] for k in ("vocab_size", "seq_len", "num_layers", "num_heads", "hidden_size")
)
BATCH, GATED, INNER = shape["batch"], shape["gated"], shape["intermediate_size"]
KV_HEADS, EPS, THETA = shape["num_kv_heads"], shape["norm_eps"], shape["rope_theta"]
HEAD_DIM = HIDDEN // HEADS
torch.set_float32_matmul_precision("high")


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.sizes = [HIDDEN, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
        self.qkv = nn.Linear(HIDDEN, sum(self.sizes), bias=not GATED)
        self.proj = nn.Linear(HIDDEN, HIDDEN, bias=not GATED)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        heads = lambda t: t.view(batch, seq, -1, HEAD_DIM).transpose(1, 2)
        q, k, v = map(heads, self.qkv(x).split(self.sizes, 2))
        if GATED:
            q, k = rope(q, cos, sin), rope(k, cos, sin)
        grouped = KV_HEADS < HEADS
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.proj(y.transpose(1, 2).reshape(batch, seq, HIDDEN))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(HIDDEN, (2 if GATED else 1) * INNER, bias=not GATED)
        self.down = nn.Linear(INNER, HIDDEN, bias=not GATED)

    def forward(self, x):
        x = self.up(x)
        if not GATED:
            return self.down(F.gelu(x, approximate="tanh"))
        gate, up = x.chunk(2, -1)
        return self.down(F.silu(gate) * up)


def norm():
    return nn.RMSNorm(HIDDEN, EPS) if GATED else nn.LayerNorm(HIDDEN, EPS)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(), Attention(), norm(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, HIDDEN)
        self.positions = None if GATED else nn.Embedding(SEQ, HIDDEN)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = norm()
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        if not GATED:
            self.head.weight = self.tokens.weight
        half = HEAD_DIM // 2
        angles = torch.outer(torch.arange(SEQ).float(), THETA ** (-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos()[None, None])
        self.register_buffer("sin", angles.sin()[None, None])
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs)
        if self.positions is not None:
            x = x + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95), fused=True)
compiled = torch.compile(model, mode=None if mode == "default" else mode)
inputs = torch.randint(0, VOCAB, (BATCH, SEQ), device="cuda")
targets = torch.randint(0, VOCAB, (BATCH, SEQ), device="cuda")


def step():
    with torch.autocast("cuda", torch.bfloat16):
        loss = compiled(inputs, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


for line in sys.stdin:
    seconds = []
    for _ in range(int(line)):
        start = time.perf_counter()
        loss = step()
        value = loss.item()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    memory = torch.cuda.max_memory_allocated()
    print(json.dumps({"seconds": seconds, "loss": value, "memory": memory}), flush=True)
