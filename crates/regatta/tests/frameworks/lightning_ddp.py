"""Lightning: Trainer with the DDP strategy, which detects its cluster environment."""

import sys

import lightning
import torch

NODES, DEVICES = int(sys.argv[1]), int(sys.argv[2])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def training_step(self, batch, index):
        # The gradient of rank r is r + 1; the mean over all ranks is (size + 1) / 2.
        return self.layer(torch.full((1, 2), float(self.global_rank + 1))).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


model = Model()
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", num_nodes=NODES, devices=DEVICES, max_steps=1,
    logger=False, enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(model, torch.utils.data.DataLoader(torch.zeros(64, 1)))
size = NODES * DEVICES
assert trainer.world_size == size, trainer.world_size
weight = model.layer.weight.detach()
assert torch.equal(weight, torch.full((1, 2), -(size + 1) / 2)), weight
cluster = type(trainer.strategy.cluster_environment).__name__
print(f"lightning rank {trainer.global_rank} of {size} local {trainer.local_rank} {cluster}")
