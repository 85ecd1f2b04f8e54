"""nanoGPT's character-level Shakespeare model in PyTorch, trained until a validation loss is reached.

Arguments: the text file and the validation loss. Prints a line per evaluation: step, seconds of training
so far (without compilation, evaluation and data preparation), training loss and validation loss.
"""
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HEADS, HIDDEN, SEQ, BATCH, DROPOUT, STEPS = 6, 6, 384, 256, 64, 0.2, 5000
text = open(sys.argv[1]).read()
goal = float(sys.argv[2])
alphabet = sorted(set(text))
index = {c: i for i, c in enumerate(alphabet)}
data = torch.tensor([index[c] for c in text], device="cuda")
split = int(0.9 * len(data))
train, val = data[:split], data[split:]
torch.manual_seed(1337)
torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN, bias=False), nn.LayerNorm(HIDDEN, bias=False)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x):
        batch, seq, _ = x.shape
        heads = lambda t: t.view(batch, seq, HEADS, -1).transpose(1, 2)
        q, k, v = map(heads, self.qkv(self.norm1(x)).split(HIDDEN, 2))
        dropout = DROPOUT if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(batch, seq, HIDDEN)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(alphabet), HIDDEN)
        self.positions = nn.Embedding(SEQ, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(HIDDEN, bias=False)
        self.drop = nn.Dropout(DROPOUT)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)

    def forward(self, inputs, targets):
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.drop(self.tokens(inputs) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, len(alphabet)).float(), targets.view(-1))


def batch(of):
    first = torch.randint(len(of) - SEQ, (BATCH,), device="cuda")
    at = first[:, None] + torch.arange(SEQ, device="cuda")
    return of[at], of[at + 1]


model = Model().cuda()
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, 1e-3, betas=(0.9, 0.99), fused=True)
compiled = torch.compile(model)


def rate(step):
    if step < 100:
        return 1e-3 * (step + 1) / 101
    done = (step - 100) / (STEPS - 100)
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * done)) * 9e-4


def train_step(step):
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    with torch.autocast("cuda", torch.bfloat16):
        loss = compiled(*batch(train))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def evaluate():
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        loss = sum(compiled(*batch(val)).item() for _ in range(200)) / 200
    model.train()
    return loss


begin = time.perf_counter()
train_step(0)
evaluate()
torch.cuda.synchronize()
print(f"compiled in {time.perf_counter() - begin:.1f} s", flush=True)
seconds = 0.0
for step in range(0, STEPS, 250):
    start = time.perf_counter()
    for i in range(step, step + 250):
        loss = train_step(i)
    torch.cuda.synchronize()
    seconds += time.perf_counter() - start
    found = evaluate()
    print(f"step {step + 250} {seconds:.2f} s loss {loss.item():.4f} val {found:.4f}", flush=True)
    if found <= goal:
        break
