"""Hugging Face Accelerate: prepares a model and reduces a known sum."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
rank, size = accelerator.process_index, accelerator.num_processes

model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
model, optimizer = accelerator.prepare(model, optimizer)
# The gradient of rank r is r + 1; the mean over all ranks is (size + 1) / 2.
loss = model(torch.full((1, 2), float(rank + 1))).sum()
accelerator.backward(loss)
optimizer.step()
weight = accelerator.unwrap_model(model).weight.detach()
assert torch.equal(weight, torch.full((1, 2), -(size + 1) / 2)), weight

total = accelerator.reduce(torch.tensor(float(rank + 1)), "sum").item()
assert total == size * (size + 1) / 2, total
print(f"accelerate rank {rank} of {size} local {accelerator.local_process_index}", flush=True)
accelerator.end_training()
