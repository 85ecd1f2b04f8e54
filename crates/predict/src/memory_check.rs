//! Checks before the start that the ranks of a node fit in its memory. No I/O.

use regatta_model::units::{format_memory, pluralize};
use thiserror::Error;

use crate::cost::MemoryBytes;
use crate::layout::ParallelLayout;

/// Minimum host memory of a rank in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryNeed {
    /// Of a rank on CPUs.
    Cpu {
        /// Parameters, gradients and optimizer state.
        state: u64,
        /// Saved activations and workspace.
        activations: u64,
        /// Copy of parameters and optimizer state that a background checkpoint writes.
        checkpoint: u64,
    },
    /// Of a rank with a GPU.
    Gpu {
        /// Pinned memory for offloaded state.
        pinned: u64,
        /// Copy of parameters and optimizer state that a background checkpoint writes.
        checkpoint: u64,
    },
}

impl MemoryNeed {
    /// By the cost model, with the copy of a background checkpoint.
    pub fn new(memory: &MemoryBytes, checkpoint: u64, on_gpu: bool) -> Self {
        let (state, activations) = (memory.state(), memory.activations + memory.workspace);
        match on_gpu {
            true => Self::Gpu { pinned: memory.pinned, checkpoint },
            false => Self::Cpu { state, activations, checkpoint },
        }
    }

    /// Bytes of the copy that a background checkpoint writes.
    pub fn checkpoint_copy(plan: &ParallelLayout, memory: &MemoryBytes) -> u64 {
        let sharding = if plan.zero == 0 { 1 } else { plan.mesh.shard };
        let replicas = (plan.mesh.data_ranks() / sharding) as u64;
        // Replicas of the same shards write equal parts of the parameter and both moments.
        memory.optimizer.resident / 2 * 3 / replicas
    }

    /// The part of a background checkpoint.
    pub fn checkpoint(&self) -> u64 {
        let (Self::Cpu { checkpoint, .. } | Self::Gpu { checkpoint, .. }) = self;
        *checkpoint
    }

    fn total(&self) -> u64 {
        match self {
            Self::Cpu { state, activations, checkpoint } => {
                state.saturating_add(*activations).saturating_add(*checkpoint)
            }
            Self::Gpu { pinned, checkpoint } => pinned.saturating_add(*checkpoint),
        }
    }

    /// This rank's entry of the all-gather that precedes the check.
    pub fn entry(&self, limits: &[MemoryLimit]) -> MemoryEntry {
        let mut entry = [0; ENTRY_LEN];
        entry[0] = self.total();
        entry[1..].iter_mut().zip(limits).for_each(|(id, limit)| *id = limit.id);
        entry
    }

    /// Checks that all ranks under each of the limits of this rank, `rank` on `host`, fit, given the entries
    /// of all ranks.
    pub fn check(
        &self,
        (rank, host): (u32, &str),
        limits: &[MemoryLimit],
        all: &[MemoryEntry],
    ) -> Result<(), InsufficientMemory> {
        exceeded_limit(limits, all).map_or(Ok(()), |exceeded| {
            Err(InsufficientMemory { rank, host: host.to_owned(), own: *self, exceeded })
        })
    }

    /// The memory that is too small.
    fn memory(&self) -> &'static str {
        if matches!(self, Self::Cpu { .. }) { "memory" } else { "host memory" }
    }

    /// What the memory is for, and how to need less of it.
    fn uses_and_fixes(&self, ranks: usize) -> String {
        let checkpoint = format_memory(self.checkpoint());
        let if_checkpoint = |text: String| if self.checkpoint() > 0 { text } else { String::new() };
        match self {
            Self::Cpu { state, activations, .. } => format!(
                "{} for parameters, gradients and optimizer state, {}and {} for activations. Reduce the \
                 model (model.num_layers, model.hidden_size, model.vocab_size) or train.micro_batch, set \
                 train.recompute=true, shard (parallel.zero, parallel.tp, parallel.pp), {}{}or offload \
                 (offload.optimizer, offload.parameters)",
                format_memory(*state),
                if_checkpoint(format!("{checkpoint} for background checkpoints, ")),
                format_memory(*activations),
                if_checkpoint(format!(
                    "set checkpoint.interval=0 (no checkpoints; saves {checkpoint} per rank), "
                )),
                if ranks == 1 { "" } else { "use fewer ranks per node, " },
            ),
            Self::Gpu { pinned, .. } => {
                let size = format_memory(*pinned);
                let pinned = (*pinned > 0).then(|| {
                    let fix = "offload less or to disk (offload.optimizer, offload.parameters)";
                    (format!("{size} of pinned memory for offloaded state"), fix)
                });
                let copy = (self.checkpoint() > 0).then(|| {
                    let fix = "set checkpoint.interval=0 (no checkpoints)";
                    (format!("{checkpoint} for the copy of a background checkpoint"), fix)
                });
                let (uses, fixes): (Vec<_>, Vec<_>) = pinned.into_iter().chain(copy).unzip();
                format!(
                    "{}. To need less, {}, shard the state over more nodes (parallel.zero), or use \
                     fewer ranks per node",
                    uses.join(" and "),
                    fixes.join(", ")
                )
            }
        }
    }
}

/// A memory limit that its ranks exceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExceededLimit {
    /// Name of the limit.
    pub limit: String,
    /// Free bytes.
    pub free: u64,
    /// Ranks under the limit.
    pub ranks: usize,
    /// Bytes that they need.
    pub needed: u64,
}

impl std::fmt::Display for ExceededLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, free, ranks, needed } = self;
        let (verb, noun) = (if *ranks == 1 { "needs" } else { "need" }, pluralize(*ranks, "rank"));
        let (needed, free) = (format_memory(*needed), format_memory(*free));
        write!(f, "{noun} {verb} {needed}, but {limit} has only {free} free")
    }
}

/// The first of these limits that the ranks under it exceed.
fn exceeded_limit(limits: &[MemoryLimit], all: &[MemoryEntry]) -> Option<ExceededLimit> {
    limits.iter().take(ENTRY_LEN - 1).find_map(|MemoryLimit { id, free, name }| {
        let under = all.iter().filter(|entry| entry[1..].contains(id));
        let ranks = under.clone().count();
        let needed = under.fold(0u64, |sum, entry| sum.saturating_add(entry[0]));
        let (limit, free) = (name.clone(), *free);
        (needed > free).then_some(ExceededLimit { limit, free, ranks, needed })
    })
}

/// A memory limit that ranks share: that of their node or of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Identifier, not 0: equal on all ranks under the limit, and on no others.
    pub id: u64,
    /// Free bytes.
    pub free: u64,
    /// Name, such as `this node`.
    pub name: String,
}

const ENTRY_LEN: usize = 16;

/// What a rank reports to all others: the bytes it needs, then the [`MemoryLimit::id`]s that apply to it,
/// padded with 0.
pub type MemoryEntry = [u64; ENTRY_LEN];

/// A training run that does not fit in memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "not enough {} on {host}: {exceeded}. Rank {rank} needs {}. train.check_memory=false skips this check",
    own.memory(), own.uses_and_fixes(exceeded.ranks)
)]
pub struct InsufficientMemory {
    /// The rank that reports it.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// What the reporting rank needs.
    pub own: MemoryNeed,
    /// The limit.
    pub exceeded: ExceededLimit,
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: (u32, &str) = (3, "n1");

    fn limit(id: u64, free: u64) -> MemoryLimit {
        MemoryLimit { id, free, name: format!("limit {id}") }
    }

    #[test]
    fn insufficient_memory_names_host_rank_sizes_and_keys() {
        let with_checkpoint =
            |checkpoint| MemoryNeed::Cpu { state: 2 << 30, activations: 1 << 29, checkpoint };
        let need = with_checkpoint(1 << 30);
        let check = |free| {
            let node = [limit(1, free)];
            need.check(RANK, &node, &[need.entry(&node); 2])
        };
        let both = 7 << 30;
        assert_eq!(check(both), Ok(()));
        let error = check(both - 1).unwrap_err().to_string();
        for part in [
            "not enough memory on n1: 2 ranks need 7.0 GiB, but limit 1 has only 7.0 GiB free",
            "Rank 3 needs 2.0 GiB for par",
            "optimizer state, 1.0 GiB for background checkpoints, and 512.0 MiB for activations. Reduce",
            "parallel.pp), set checkpoint.interval=0 (no checkpoints; saves 1.0 GiB per rank), use fewer",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let single = with_checkpoint(0);
        let error = single.check(RANK, &[limit(1, 0)], &[single.entry(&[limit(1, 0)])]);
        let error = error.unwrap_err().to_string();
        for part in [
            "optimizer state, and 512.0 MiB for activations. Reduce the model",
            "parallel.pp), or offload (offload.optimizer, offload.parameters). train.check_memory",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // Sums saturate.
        let max = MemoryNeed::Cpu { state: u64::MAX, activations: u64::MAX, checkpoint: u64::MAX };
        let node = [limit(1, u64::MAX - 1)];
        assert!(max.check(RANK, &node, &[max.entry(&node); 2]).is_err());
    }

    #[test]
    fn insufficient_host_memory_of_gpu_runs_names_host_rank_sizes_and_keys() {
        let pinned = MemoryNeed::Gpu { pinned: 3 << 30, checkpoint: 0 };
        let checkpoint = MemoryNeed::Gpu { pinned: 0, checkpoint: 3 << 30 };
        let cases = [
            (
                pinned,
                "Rank 3 needs 3.0 GiB of pinned memory for offloaded state. To need less, offload",
            ),
            (
                checkpoint,
                "Rank 3 needs 3.0 GiB for the copy of a background checkpoint. To need less, set",
            ),
        ];
        let node = [limit(1, (6 << 30) - 1)];
        for (need, own) in cases {
            assert_eq!(need.check(RANK, &node, &[need.entry(&node)]), Ok(()));
            let error = need.check(RANK, &node, &[need.entry(&node); 2]).unwrap_err().to_string();
            let all = "not enough host memory on n1: 2 ranks need 6.0 GiB, but limit 1 has only";
            for part in [all, own] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        // Both count.
        let both = MemoryNeed::Gpu { pinned: 3 << 30, checkpoint: 3 << 30 };
        let error = both.check(RANK, &node, &[both.entry(&node)]).unwrap_err().to_string();
        assert!(error.contains("state and 3.0 GiB for the copy"), "{error}");
        assert!(error.contains("offload.parameters), set checkpoint.interval=0"), "{error}");
    }

    #[test]
    fn each_limit_counts_the_ranks_under_it() {
        let need = MemoryNeed::Cpu { state: 50, activations: 10, checkpoint: 0 };
        let (node, own, other) = (limit(1, 200), limit(2, 70), limit(3, 70));
        let (mine, theirs) = ([node.clone(), own.clone()], [node.clone(), other.clone()]);
        // One control group per rank, on one node.
        let all = [need.entry(&mine), need.entry(&theirs)];
        assert_eq!(need.check(RANK, &mine, &all), Ok(()));
        let small = [limit(1, 119), own.clone()];
        assert_eq!(need.check(RANK, &small, &all).unwrap_err().exceeded.limit, "limit 1");
        // One control group for both.
        let error = need.check(RANK, &mine, &[need.entry(&mine); 2]).unwrap_err();
        let exceeded = error.exceeded;
        assert_eq!((exceeded.ranks, exceeded.needed, &*exceeded.limit), (2, 120, "limit 2"));
        // Ranks of other nodes do not count.
        let elsewhere = need.entry(&[limit(9, 0)]);
        assert_eq!(need.check(RANK, &mine, &[need.entry(&mine), elsewhere]), Ok(()));
        // Each rank counts with its own need.
        let large = MemoryNeed::Cpu { state: 150, activations: 0, checkpoint: 0 };
        assert!(need.check(RANK, &mine, &[need.entry(&mine), large.entry(&theirs)]).is_err());
        // More nested limits than an entry holds.
        let deep: Vec<MemoryLimit> = (1..100).map(|id| limit(id, 60)).collect();
        assert_eq!(need.check(RANK, &deep, &[need.entry(&deep)]), Ok(()));
    }
}
