//! The memory that a training takes, told before it is taken. No I/O.

use std::fmt;

use thiserror::Error;

use crate::cost::Holds;

/// Bytes that a rank needs at least; what else it takes is little beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Parameters, gradients and the optimizer's state.
    pub state: u64,
    /// What a forward pass leaves for the backward pass.
    pub activations: u64,
    /// Copy of parameters and optimizer state that a background checkpoint writes.
    pub checkpoint: u64,
}

impl Footprint {
    /// Of a rank that holds this.
    pub fn of(holds: &Holds) -> Self {
        let activations = holds.activations + holds.working;
        Self { state: holds.state(), activations, checkpoint: 0 }
    }

    /// With the copy of a background checkpoint.
    pub fn with_checkpoint(self, checkpoint: u64) -> Self {
        Self { checkpoint, ..self }
    }

    fn total(&self) -> u64 {
        self.state.saturating_add(self.activations).saturating_add(self.checkpoint)
    }

    /// What other ranks need to know of this one: how much it needs, and where it has to find it.
    pub fn told(&self, rooms: &[Room]) -> Told {
        let mut told = [0; TOLD];
        told[0] = self.total();
        told[1..].iter_mut().zip(rooms).for_each(|(told, room)| *told = room.id);
        told
    }

    /// Whether all ranks that share a memory of this one's have room there, by what all have told.
    pub fn check(&self, rooms: &[Room], all: &[Told]) -> Result<(), TooLarge> {
        let Self { state, activations, checkpoint } = *self;
        for Room { id, free, name } in rooms.iter().take(TOLD - 1) {
            let inside = all.iter().filter(|told| told[1..].contains(id));
            let (ranks, needed) = inside
                .fold((0, 0u64), |(ranks, sum), told| (ranks + 1, sum.saturating_add(told[0])));
            if needed > *free {
                let (free, place) = (*free, name.clone());
                return Err(TooLarge {
                    ranks,
                    needed,
                    state,
                    activations,
                    checkpoint,
                    free,
                    place,
                });
            }
        }
        Ok(())
    }
}

/// Memory that ranks share: their node's, or that of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// What it is known by, not 0: the same on all ranks that share it, and on no others.
    pub id: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Whose it is, such as `this node`.
    pub name: String,
}

/// The numbers of a [`Told`].
const TOLD: usize = 16;

/// What a rank tells the others: the bytes that it needs, and the [`Room::id`]s in which it needs them;
/// 0 is none.
pub type Told = [u64; TOLD];

/// A training that memory cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{ranks} of this node's ranks need {}, and {} of the memory of {place} are free: this one has \
     {} of parameters, gradients and optimizer state (model.layers, model.width, model.vocabulary) \
     {} of activations (train.micro_batch, train.recompute) and {} for background checkpoints \
     (checkpoint.interval); make these smaller, share them \
     (parallel.zero, parallel.tp, parallel.pp), keep them on disk (offload.optimizer, \
     offload.parameters) or start fewer ranks, or try it all the same with \
     train.check_memory=false",
    Size(*needed), Size(*free), Size(*state), Size(*activations), Size(*checkpoint)
)]
pub struct TooLarge {
    /// Ranks that share the memory.
    pub ranks: usize,
    /// Bytes that they need at least.
    pub needed: u64,
    /// Of these, this rank for its state.
    pub state: u64,
    /// And for its activations.
    pub activations: u64,
    /// And for the copy of a background checkpoint.
    pub checkpoint: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Whose memory it is.
    pub place: String,
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

    fn room(id: u64, free: u64) -> Room {
        Room { id, free, name: format!("room {id}") }
    }

    #[test]
    fn what_has_no_room_is_refused_with_sizes_and_keys() {
        let footprint = Footprint { state: 2 << 30, activations: 1 << 29, checkpoint: 0 }
            .with_checkpoint(1 << 30);
        let check = |free| {
            let node = [room(1, free)];
            footprint.check(&node, &[footprint.told(&node); 2])
        };
        let both = 7 << 30;
        assert_eq!(check(both), Ok(()));
        let error = check(both - 1).unwrap_err().to_string();
        for part in [
            "2 of this node's ranks need 7.0 GiB",
            "2.0 GiB of par",
            "512.0 MiB of act",
            "1.0 GiB for back",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // The largest that can be asked for is a number, too.
        let most = Footprint { state: u64::MAX, activations: u64::MAX, checkpoint: u64::MAX };
        let node = [room(1, u64::MAX - 1)];
        assert!(most.check(&node, &[most.told(&node); 2]).is_err());
    }

    #[test]
    fn ranks_need_room_where_they_are() {
        let each = Footprint { state: 50, activations: 10, checkpoint: 0 };
        let (node, own, others) = (room(1, 200), room(2, 70), room(3, 70));
        let (mine, theirs) = ([node.clone(), own.clone()], [node.clone(), others.clone()]);
        // A group for each: what one needs. They share the node.
        let all = [each.told(&mine), each.told(&theirs)];
        assert_eq!(each.check(&mine, &all), Ok(()));
        let small = [room(1, 119), own.clone()];
        assert_eq!(each.check(&small, &all).unwrap_err().place, "room 1");
        // One for both: what both need.
        let error = each.check(&mine, &[each.told(&mine); 2]).unwrap_err();
        assert_eq!((error.ranks, error.needed, error.place.as_str()), (2, 120, "room 2"));
        // Others on other nodes matter to nobody here.
        let elsewhere = each.told(&[room(9, 0)]);
        assert_eq!(each.check(&mine, &[each.told(&mine), elsewhere]), Ok(()));
        // Each rank needs as much as it says, not as this one.
        let large = Footprint { state: 150, activations: 0, checkpoint: 0 };
        assert!(each.check(&mine, &[each.told(&mine), large.told(&theirs)]).is_err());
        // Deeper than anybody has them: what is told is told, and nothing panics.
        let deep: Vec<Room> = (1..100).map(|id| room(id, 60)).collect();
        assert_eq!(each.check(&deep, &[each.told(&deep)]), Ok(()));
    }
}
