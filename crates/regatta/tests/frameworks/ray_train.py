"""Ray Train: its workers are ranks already, and start the command of argv as a child process."""

import subprocess
import sys

import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train(config):
    child = subprocess.run(config["command"], capture_output=True, text=True, timeout=60)
    raise RuntimeError(f"exit code {child.returncode}: {child.stderr}")


ray.init(num_cpus=3, include_dashboard=False)
trainer = TorchTrainer(
    train,
    train_loop_config={"command": sys.argv[1:]},
    scaling_config=ScalingConfig(num_workers=2),
    torch_config=TorchConfig(backend="gloo"),
)
try:
    trainer.fit()
except Exception as error:
    print(error)
