//! The memory that a training takes, told before it is taken. No I/O.

use std::fmt;

use thiserror::Error;

use crate::parallel::cost::Holds;

/// Bytes that a rank needs at least; what else it takes is little beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Parameters, gradients and the optimizer's state.
    pub state: u64,
    /// What a forward pass leaves for the backward pass.
    pub activations: u64,
}

impl Footprint {
    /// Of a rank that holds this.
    pub fn of(holds: &Holds) -> Self {
        Self { state: holds.state(), activations: holds.activations + holds.working }
    }

    /// Whether so many ranks have room in so much memory.
    pub fn check(&self, ranks: usize, free: u64) -> Result<(), TooLarge> {
        let each = self.state.saturating_add(self.activations);
        let needed = each.saturating_mul(ranks as u64);
        let Self { state, activations } = *self;
        match needed <= free {
            true => Ok(()),
            false => Err(TooLarge { ranks, needed, state, activations, free }),
        }
    }
}

/// A training that memory cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{ranks} of this node's ranks need {}, and {} of its memory are free: each has {} of parameters, \
     gradients and optimizer state (model.layers, model.width, model.vocabulary) and {} of \
     activations (train.micro_batch, train.recompute); make these smaller, share them \
     (parallel.zero, parallel.tp, parallel.pp), keep them on disk (offload.optimizer, \
     offload.parameters) or start fewer ranks, or try it all the same with \
     train.check_memory=false",
    Size(*needed), Size(*free), Size(*state), Size(*activations)
)]
pub struct TooLarge {
    /// Ranks that share the memory.
    pub ranks: usize,
    /// Bytes that they need at least.
    pub needed: u64,
    /// Of these, each for its state.
    pub state: u64,
    /// And for its activations.
    pub activations: u64,
    /// Bytes that are free.
    pub free: u64,
}

/// Bytes, for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.0 as f64 / (1u64 << 30) as f64;
        match gib < 1.0 {
            true => write!(f, "{:.1} MiB", gib * 1024.0),
            false => write!(f, "{gib:.1} GiB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_refused_with_sizes_and_keys() {
        let footprint = Footprint { state: 3 << 30, activations: 1 << 29 };
        let both = 7 << 30;
        assert_eq!(footprint.check(2, both), Ok(()));
        let error = footprint.check(2, both - 1).unwrap_err().to_string();
        for part in ["2 of this node's ranks need 7.0 GiB", "3.0 GiB of par", "512.0 MiB of act"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // The largest that can be asked for is a number, too.
        let most = Footprint { state: u64::MAX, activations: u64::MAX };
        assert!(most.check(usize::MAX, u64::MAX - 1).is_err());
    }
}
