"""Makes the golden values that tests/golden.rs compares the engine with: losses, logits, gradients and
the losses of a short training, by PyTorch's autograd and AdamW in double precision.

Run it in this folder, with a Python that has PyTorch and nothing else:

    python make.py

The files here were made with PyTorch 2.15.0. Parameters and tokens are formulas, which golden.rs has,
too, so that the files hold only what comes out."""

import json
import math

import torch
import torch.nn.functional as F

BATCH, SEQUENCE, STEPS = 3, 7, 20
PLAN = dict(rate=0.01, beta1=0.9, beta2=0.95, epsilon=1e-8, decay=0.1, clip=1.0)

GPT2 = dict(
    family="gpt2", vocabulary=13, context=8, width=16, layers=2, heads=4, kv_heads=4,
    feed_forward=24, tied=True, bias=True, norm_epsilon=1e-5, rope_base=10000.0,
)  # fmt: skip
MODELS = {
    "gpt2": GPT2,
    "gpt2-without-biases": GPT2 | dict(bias=False),
    "llama": GPT2 | dict(family="llama", kv_heads=2, tied=False, bias=False, norm_epsilon=1e-6, rope_base=100.0),
    "mlp": GPT2 | dict(family="mlp"),
}


def names_and_sizes(shape):
    """Parameters in the order of the engine's blocks."""
    width, inner = shape["width"], shape["feed_forward"]
    head = width // shape["heads"]
    llama = shape["family"] == "llama"

    def with_bias(name, *size):
        yield f"{name}.weight", size
        if shape["bias"]:
            yield f"{name}.bias", size[:1]

    yield "embed.tokens", (shape["vocabulary"], width)
    if shape["family"] == "gpt2":
        yield "embed.positions", (shape["context"], width)
    for layer in range(shape["layers"]):
        at = f"layer.{layer}"
        if shape["family"] != "mlp":
            yield from with_bias(f"{at}.norm1", width)
            rows = (shape["heads"] + 2 * shape["kv_heads"]) * head
            yield from with_bias(f"{at}.qkv", rows, width)
            yield from with_bias(f"{at}.proj", width, width)
        yield from with_bias(f"{at}.norm2", width)
        yield from with_bias(f"{at}.up", 2 * inner if llama else inner, width)
        yield from with_bias(f"{at}.down", width, inner)
    yield from with_bias("head.norm", width)
    if not shape["tied"]:
        yield "head.output", (shape["vocabulary"], width)


def parameters(shape):
    """Number i of parameter n is 0.3 sin(1 + n + 0.37 i + 0.011 i²), and 1 more in norms' weights."""
    made = {}
    for n, (name, size) in enumerate(names_and_sizes(shape)):
        more = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        count = math.prod(size)
        numbers = [more + 0.3 * math.sin(1 + n + 0.37 * i + 0.011 * i * i) for i in range(count)]
        made[name] = torch.tensor(numbers, dtype=torch.float64).reshape(size).requires_grad_()
    return made


def tokens(shape, step):
    """Token j of all is (j² + j/3, rounded down) modulo the vocabulary; each is the target of the one
    before it."""
    first = step * BATCH * SEQUENCE
    stream = [(j * j + j // 3) % shape["vocabulary"] for j in range(first, first + BATCH * SEQUENCE + 1)]
    stream = torch.tensor(stream)
    return stream[:-1].view(BATCH, SEQUENCE), stream[1:].view(BATCH, SEQUENCE)


def norm(shape, p, name, x):
    weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
    if shape["family"] == "llama":
        return F.rms_norm(x, weight.shape, weight, shape["norm_epsilon"])
    return F.layer_norm(x, weight.shape, weight, bias, shape["norm_epsilon"])


def linear(p, name, x):
    return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def rotated(x, base):
    """Turns number i of a head together with number i + half. x: batch, heads, sequence, head."""
    half = x.shape[-1] // 2
    turns = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * turns
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def attention(shape, p, at, x):
    heads, kv_heads = shape["heads"], shape["kv_heads"]
    batch, sequence, width = x.shape
    head = width // heads
    qkv = linear(p, f"{at}.qkv", x)
    q, k, v = qkv.split([heads * head, kv_heads * head, kv_heads * head], -1)
    q, k, v = (part.view(batch, sequence, -1, head).transpose(1, 2) for part in (q, k, v))
    if shape["family"] == "llama":
        q, k = rotated(q, shape["rope_base"]), rotated(k, shape["rope_base"])
    k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return linear(p, f"{at}.proj", y.transpose(1, 2).reshape(batch, sequence, width))


def feed_forward(shape, p, at, x):
    up = linear(p, f"{at}.up", x)
    if shape["family"] == "llama":
        gate, up = up.chunk(2, -1)
        return linear(p, f"{at}.down", F.silu(gate) * up)
    return linear(p, f"{at}.down", F.gelu(up, approximate="tanh"))


def logits(shape, p, inputs):
    x = p["embed.tokens"][inputs]
    if shape["family"] == "gpt2":
        x = x + p["embed.positions"][: inputs.shape[1]]
    for layer in range(shape["layers"]):
        at = f"layer.{layer}"
        if shape["family"] != "mlp":
            x = x + attention(shape, p, at, norm(shape, p, f"{at}.norm1", x))
        x = x + feed_forward(shape, p, at, norm(shape, p, f"{at}.norm2", x))
    x = norm(shape, p, "head.norm", x)
    return x @ (p["embed.tokens"] if shape["tied"] else p["head.output"]).T


def loss_of(shape, p, step):
    inputs, targets = tokens(shape, step)
    out = logits(shape, p, inputs)
    return F.cross_entropy(out.flatten(0, 1), targets.flatten()), out


def told(name, gradient):
    """A gradient in few numbers: its norm, its sum with weights that tell places apart, and some of it."""
    flat = gradient.flatten().tolist()
    few = len(flat) <= 48
    picked = range(len(flat)) if few else sorted({(i * i * 31 + i * 8) % len(flat) for i in range(24)})
    return dict(
        name=name,
        length=len(flat),
        norm=gradient.norm().item(),
        weighted=math.fsum(g * math.sin(1.0 + i) for i, g in enumerate(flat)),
        picked=[[i, flat[i]] for i in picked],
    )


def trained(shape):
    p = parameters(shape)
    matrices = [x for x in p.values() if x.dim() > 1]
    others = [x for x in p.values() if x.dim() == 1]
    groups = [dict(params=matrices, weight_decay=PLAN["decay"]), dict(params=others, weight_decay=0.0)]
    betas = (PLAN["beta1"], PLAN["beta2"])
    optimizer = torch.optim.AdamW(groups, lr=PLAN["rate"], betas=betas, eps=PLAN["epsilon"])
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, _ = loss_of(shape, p, step)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), PLAN["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def golden(shape):
    p = parameters(shape)
    loss, out = loss_of(shape, p, 0)
    loss.backward()
    losses, norms = trained(shape)
    return dict(
        made_with=f"PyTorch {torch.__version__.split('+')[0]}",
        shape=shape,
        batch=BATCH,
        sequence=SEQUENCE,
        loss=loss.item(),
        last_logits=out[-1, -1].tolist(),
        gradients=[told(name, x.grad) for name, x in p.items()],
        plan=PLAN,
        losses=losses,
        gradient_norms=norms,
    )


for name, shape in MODELS.items():
    with open(f"{name}.json", "w") as file:
        json.dump(golden(shape), file, indent=None, separators=(",", ":"))
        file.write("\n")
