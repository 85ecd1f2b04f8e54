"""Generates the golden values for tests/integration/golden.rs: loss, logits, gradients and the losses of a short
training, computed in f64 with PyTorch's autograd and AdamW. make_bf16.py generates those of bf16.

Run it in this folder; PyTorch is the only dependency:

    python make.py

The stored files were generated with PyTorch 2.15.0. Parameters and tokens are given by formulas that
golden.rs repeats, so the files contain results only."""

import json
import math

import torch
import torch.nn.functional as F

BATCH, SEQ_LEN, STEPS = 3, 7, 20
OPTIMIZER = dict(lr=0.01, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip=1.0)

GPT2 = dict(
    family="gpt2", vocab_size=13, seq_len=8, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=4,
    intermediate_size=24, tie_embeddings=True, bias=True, norm_eps=1e-5, rope_theta=10000.0,
)  # fmt: skip
MODELS = {
    "gpt2": GPT2,
    "gpt2-without-biases": GPT2 | dict(bias=False),
    "llama": GPT2 | dict(
        family="llama", num_kv_heads=2, tie_embeddings=False, bias=False, norm_eps=1e-6, rope_theta=100.0,
    ),  # fmt: skip
    "mlp": GPT2 | dict(family="mlp"),
}


def names_and_sizes(shape):
    """Parameter names and shapes, in the order of the engine's blocks."""
    hidden, intermediate = shape["hidden_size"], shape["intermediate_size"]
    head_dim = hidden // shape["num_heads"]
    llama = shape["family"] == "llama"

    def with_bias(name, *size):
        yield f"{name}.weight", size
        if shape["bias"]:
            yield f"{name}.bias", size[:1]

    yield "embed.tokens", (shape["vocab_size"], hidden)
    if shape["family"] == "gpt2":
        yield "embed.positions", (shape["seq_len"], hidden)
    for layer in range(shape["num_layers"]):
        at = f"layer.{layer}"
        if shape["family"] != "mlp":
            yield from with_bias(f"{at}.norm1", hidden)
            rows = (shape["num_heads"] + 2 * shape["num_kv_heads"]) * head_dim
            yield from with_bias(f"{at}.qkv", rows, hidden)
            yield from with_bias(f"{at}.proj", hidden, hidden)
        yield from with_bias(f"{at}.norm2", hidden)
        yield from with_bias(f"{at}.up", 2 * intermediate if llama else intermediate, hidden)
        yield from with_bias(f"{at}.down", hidden, intermediate)
    yield from with_bias("head.norm", hidden)
    if not shape["tie_embeddings"]:
        yield "head.output", (shape["vocab_size"], hidden)


def parameters(shape, amplitude=0.3):
    """Element i of parameter n is amplitude sin(1 + n + 0.37 i + 0.011 i²), plus 1 for norm weights."""
    params = {}
    for n, (name, size) in enumerate(names_and_sizes(shape)):
        offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        count = math.prod(size)
        values = [offset + amplitude * math.sin(1 + n + 0.37 * i + 0.011 * i * i) for i in range(count)]
        params[name] = torch.tensor(values, dtype=torch.float64).reshape(size).requires_grad_()
    return params


def tokens(shape, step, batch=BATCH, seq_len=SEQ_LEN):
    """Token j of the stream is (j² + floor(j / 3)) modulo the vocabulary size. The target of a token is
    the next one."""
    first = step * batch * seq_len
    stream = [(j * j + j // 3) % shape["vocab_size"] for j in range(first, first + batch * seq_len + 1)]
    stream = torch.tensor(stream)
    return stream[:-1].view(batch, seq_len), stream[1:].view(batch, seq_len)


def norm(shape, p, name, x):
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    if shape["family"] == "llama":
        return F.rms_norm(x, weight.shape, weight, shape["norm_eps"])
    return F.layer_norm(x, weight.shape, weight, bias, shape["norm_eps"])


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def apply_rope(x, theta):
    """Rotates elements i and i + head_dim / 2 of each head as a pair. x: batch, heads, seq_len, head_dim."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def attention(shape, p, at, x):
    heads, kv_heads = shape["num_heads"], shape["num_kv_heads"]
    batch, seq_len, hidden = x.shape
    head_dim = hidden // heads
    qkv = linear(p, f"{at}.qkv", x)
    q, k, v = qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], -1)
    q, k, v = (part.view(batch, seq_len, -1, head_dim).transpose(1, 2) for part in (q, k, v))
    if shape["family"] == "llama":
        q, k = apply_rope(q, shape["rope_theta"]), apply_rope(k, shape["rope_theta"])
    k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return linear(p, f"{at}.proj", y.transpose(1, 2).reshape(batch, seq_len, hidden))


def mlp(shape, p, at, x):
    up = linear(p, f"{at}.up", x)
    if shape["family"] == "llama":
        gate, up = up.chunk(2, -1)
        return linear(p, f"{at}.down", F.silu(gate) * up)
    return linear(p, f"{at}.down", F.gelu(up, approximate="tanh"))


def logits(shape, p, inputs):
    x = p["embed.tokens"][inputs]
    if shape["family"] == "gpt2":
        x = x + p["embed.positions"][: inputs.shape[1]]
    for layer in range(shape["num_layers"]):
        at = f"layer.{layer}"
        if shape["family"] != "mlp":
            x = x + attention(shape, p, at, norm(shape, p, f"{at}.norm1", x))
        x = x + mlp(shape, p, at, norm(shape, p, f"{at}.norm2", x))
    x = norm(shape, p, "head.norm", x)
    return x @ (p["embed.tokens"] if shape["tie_embeddings"] else p["head.output"]).T


def loss_of(shape, p, step):
    inputs, targets = tokens(shape, step)
    out = logits(shape, p, inputs)
    return F.cross_entropy(out.flatten(0, 1), targets.flatten()), out


def summary(name, gradient):
    """A gradient's norm, a position-weighted sum, and a sample of its elements."""
    flat = gradient.flatten().tolist()
    picked = range(len(flat)) if len(flat) <= 48 else sorted({(i * i * 31 + i * 8) % len(flat) for i in range(24)})
    return dict(
        name=name,
        length=len(flat),
        norm=gradient.norm().item(),
        weighted=math.fsum(g * math.sin(1.0 + i) for i, g in enumerate(flat)),
        picked=[[i, flat[i]] for i in picked],
    )


def train(p, loss_at, settings=OPTIMIZER):
    """Losses and gradient norms of AdamW on the parameters p, with `loss_at(step)`."""
    matrices = [x for x in p.values() if x.dim() > 1]
    others = [x for x in p.values() if x.dim() == 1]
    groups = [dict(params=matrices, weight_decay=settings["weight_decay"]), dict(params=others, weight_decay=0.0)]
    betas = (settings["beta1"], settings["beta2"])
    optimizer = torch.optim.AdamW(groups, lr=settings["lr"], betas=betas, eps=settings["eps"])
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_at(step)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), settings["grad_clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def golden(shape):
    p = parameters(shape)
    loss, out = loss_of(shape, p, 0)
    loss.backward()
    trained = parameters(shape)
    losses, norms = train(trained, lambda step: loss_of(shape, trained, step)[0])
    return dict(
        made_with=f"PyTorch {torch.__version__.split('+')[0]}",
        shape=shape,
        batch=BATCH,
        seq_len=SEQ_LEN,
        loss=loss.item(),
        last_logits=out[-1, -1].tolist(),
        gradients=[summary(name, x.grad) for name, x in p.items()],
        optimizer=OPTIMIZER,
        losses=losses,
        gradient_norms=norms,
    )


def write(name, values):
    with open(f"{name}.json", "w") as file:
        json.dump(values, file, indent=None, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    for name, shape in MODELS.items():
        write(name, golden(shape))
