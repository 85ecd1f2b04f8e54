"""JAX: initialize() without arguments, and a sum over all processes."""

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
rank, size = jax.process_index(), jax.process_count()
gathered = multihost_utils.process_allgather(jnp.array([rank + 1.0]))
assert gathered.sum() == size * (size + 1) / 2, gathered
print(f"jax rank {rank} of {size}", flush=True)
