"""DeepSpeed ZeRO-2: optimizer states and gradients are sharded."""

import deepspeed
import torch

deepspeed.init_distributed()
rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()

model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(model.weight)
config = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 0.0,
}
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
# The gradient of rank r is r + 1; the mean over all ranks is (size + 1) / 2.
engine.backward(engine(torch.full((1, 2), float(rank + 1))).sum())
engine.step()
weight = engine.module.weight.detach()
assert torch.equal(weight, torch.full((1, 2), -(size + 1) / 2)), weight
print(f"deepspeed rank {rank} of {size} local {engine.local_rank}", flush=True)
deepspeed.comm.barrier()
deepspeed.comm.destroy_process_group()
