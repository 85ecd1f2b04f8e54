"""Generates the golden values of training in bf16 for tests/integration/golden.rs, with PyTorch's autograd and AdamW:

- GEMM operands and results, and activations, are bf16; GEMMs accumulate in f32.
- Parameters, their gradients, the residual stream and its gradient are f32 (GPUs round that of the stream
  unless train.residual_gradient is f32).
- Norms, RoPE, softmax, activation functions and the loss compute in f32 and round their results to bf16.

Run it in this folder, like make.py, whose formulas it shares:

    python make_bf16.py

It also prints how far the values are from training in f64, which tolerances in golden.rs must cover."""

import torch
import torch.nn.functional as F

import make

BATCH, SEQ_LEN, AMPLITUDE = 4, 64, 0.1
OPTIMIZER = make.OPTIMIZER | dict(lr=0.001)

# Heads of dimension 64, which attention on tensor cores supports.
SIZES = dict(vocab_size=96, seq_len=64, hidden_size=128, num_heads=2, intermediate_size=256)
MODELS = {
    "gpt2-bf16": make.GPT2 | SIZES | dict(num_kv_heads=2),
    "llama-bf16": make.MODELS["llama"] | SIZES | dict(num_kv_heads=1),
}


class Linear(torch.autograd.Function):
    """A linear layer on bf16 activations with f32 parameters. Products of bf16 are exact in f32."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        weight = weight.bfloat16().float()
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        y = x.float() @ weight.T
        return (y if bias is None else y + bias).bfloat16()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient = gradient.float()
        rows, inputs = gradient.flatten(0, -2), x.float().flatten(0, -2)
        of_bias = rows.sum(0) if ctx.has_bias else None
        return (gradient @ weight).bfloat16(), rows.T @ inputs, of_bias


def linear(p, name, x):
    return Linear.apply(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def norm(shape, p, name, x):
    return make.norm(shape, p, name, x).bfloat16()


def apply_rope(x, theta):
    return make.apply_rope(x.float(), theta).to(torch.bfloat16)


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
    scores = q.float() @ k.float().transpose(-1, -2) / head_dim**0.5
    causal = torch.ones(seq_len, seq_len, dtype=torch.bool).tril()
    weights = scores.masked_fill(~causal, float("-inf")).softmax(-1).bfloat16()
    y = (weights.float() @ v.float()).bfloat16()
    return linear(p, f"{at}.proj", y.transpose(1, 2).reshape(batch, seq_len, hidden))


def mlp(shape, p, at, x):
    up = linear(p, f"{at}.up", x).float()
    if shape["family"] == "llama":
        gate, up = up.chunk(2, -1)
        return linear(p, f"{at}.down", (F.silu(gate) * up).bfloat16())
    return linear(p, f"{at}.down", F.gelu(up, approximate="tanh").bfloat16())


def loss_of(shape, p, step):
    inputs, targets = make.tokens(shape, step, BATCH, SEQ_LEN)
    x = p["embed.tokens"][inputs]
    if shape["family"] == "gpt2":
        x = x + p["embed.positions"][:SEQ_LEN]
    for layer in range(shape["num_layers"]):
        at = f"layer.{layer}"
        x = x + attention(shape, p, at, norm(shape, p, f"{at}.norm1", x)).float()
        x = x + mlp(shape, p, at, norm(shape, p, f"{at}.norm2", x)).float()
    head = p["embed.tokens"] if shape["tie_embeddings"] else p["head.output"]
    logits = Linear.apply(norm(shape, p, "head.norm", x), head, None).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def golden(name, shape):
    exact = make.parameters(shape, AMPLITUDE)
    p = {key: x.detach().float().requires_grad_() for key, x in exact.items()}
    losses, norms = make.train(p, lambda step: loss_of(shape, p, step), OPTIMIZER)

    def exact_loss(step):
        inputs, targets = make.tokens(shape, step, BATCH, SEQ_LEN)
        return F.cross_entropy(make.logits(shape, exact, inputs).flatten(0, 1), targets.flatten())

    exact_losses, exact_norms = make.train(exact, exact_loss, OPTIMIZER)
    for what, found, expected in (("losses", losses, exact_losses), ("norms", norms, exact_norms)):
        error = max(abs(a - b) / b for a, b in zip(found, expected))
        print(f"{name}: {what} are within {error:.1e} of f64, from {expected[0]:.4f} to {expected[-1]:.4f}")
    return dict(
        made_with=f"PyTorch {torch.__version__.split('+')[0]}",
        shape=shape,
        batch=BATCH,
        seq_len=SEQ_LEN,
        amplitude=AMPLITUDE,
        optimizer=OPTIMIZER,
        losses=losses,
        gradient_norms=norms,
    )


if __name__ == "__main__":
    for name, shape in MODELS.items():
        make.write(name, golden(name, shape))
