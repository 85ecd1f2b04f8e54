//! The communicators of a rank: one for each axis of the mesh on which it has company.

use std::sync::Arc;

use regatta_comm::{Comm, CommError, Counted, Counters, Named, Sent};

use regatta_predict::axis::Axis;
use regatta_predict::mesh::{Mesh, Seat};

/// A communicator that was split off, or nothing where a rank would be by itself.
pub type Company = Option<Arc<dyn Comm>>;

/// A rank and its company on each axis.
#[derive(Clone)]
pub struct Groups {
    /// How ranks are laid out.
    pub mesh: Mesh,
    /// Where this one sits.
    pub seat: Seat,
    /// All ranks; nothing if there is one.
    pub world: Company,
    /// Those that share its matrices.
    pub tensor: Company,
    /// Those that share its sequences.
    pub context: Company,
    /// Links to the next and from the one before of those.
    pub ring: Link,
    /// Those with the same parameters: other copies, and other parts of sequences.
    pub data: Company,
    /// Those of them that share sharded state.
    pub shard: Company,
    /// Those of them that have the same share of it.
    pub replica: Company,
    /// Pipeline stages: messages to the next stage, and from the one before.
    pub forward: Link,
    /// The same of gradients: messages to the stage before, and from the next.
    pub backward: Link,
    /// The first and the last stage, which both have a tied table.
    pub tied: Company,
    /// What goes through each of them.
    counters: Vec<(Axis, Arc<Counters>)>,
}

/// The two ends of a pipeline's links, each with the sender as rank 0 and the receiver as rank 1.
#[derive(Clone, Default)]
pub struct Link {
    /// Where messages go.
    pub to: Company,
    /// Where they come from.
    pub from: Company,
}

impl Groups {
    /// No other ranks.
    pub fn alone() -> Self {
        let mesh = Mesh::data(1);
        Self {
            mesh,
            seat: mesh.seat(0),
            world: None,
            tensor: None,
            context: None,
            ring: Link::default(),
            data: None,
            shard: None,
            replica: None,
            forward: Link::default(),
            backward: Link::default(),
            tied: None,
            counters: Vec::new(),
        }
    }

    /// All ranks of a communicator, which all call this with the same mesh.
    pub fn new(world: Arc<dyn Comm>, mesh: Mesh) -> Result<Self, CommError> {
        if mesh.ranks() == 1 {
            return Ok(Self::alone());
        }
        let seat = mesh.seat(world.rank() as usize);
        let Mesh { dp, cp, tp, pp, shard } = mesh;
        let Seat { dp: copy, cp: part, tp: slice, pp: stage } = seat;
        let data = seat.data_rank(&mesh);
        // Who has the same number is together, if there are several.
        let together = |ranks: usize, number: usize, key: usize| match ranks {
            1 => Ok(None),
            // All together are there already.
            all if all == mesh.ranks() => Ok(Some(world.clone())),
            _ => split(&*world, Some(number), key),
        };
        let chain = data * tp + slice;
        let link = |from: usize, to: usize| {
            let colour = (stage == from || stage == to).then_some(chain);
            split(&*world, colour, usize::from(stage == to))
        };
        let circle = (stage * dp + copy) * tp + slice;
        let ring = |from: usize, to: usize| {
            let colour = (part == from || part == to).then_some(circle);
            split(&*world, colour, usize::from(part == to))
        };
        let mut groups = Self {
            mesh,
            seat,
            tensor: together(tp, (stage * dp + copy) * cp + part, slice)?,
            context: together(cp, circle, part)?,
            ring: Link::default(),
            data: together(dp * cp, stage * tp + slice, data)?,
            shard: together(
                shard,
                (stage * tp + slice) * (dp * cp / shard) + data / shard,
                data % shard,
            )?,
            replica: together(
                dp * cp / shard,
                (stage * tp + slice) * shard + data % shard,
                data / shard,
            )?,
            forward: Link::default(),
            backward: Link::default(),
            tied: None,
            counters: Vec::new(),
            world: Some(world.clone()),
        };
        if cp > 1 {
            for sender in 0..cp {
                let receiver = (sender + 1) % cp;
                groups.ring.take(ring(sender, receiver)?, part, (sender, receiver));
            }
        }
        if pp > 1 {
            for sender in 0..pp {
                let receiver = (sender + 1) % pp;
                groups.forward.take(link(sender, receiver)?, stage, (sender, receiver));
                groups.backward.take(link(receiver, sender)?, stage, (receiver, sender));
            }
            groups.tied = link(0, pp - 1)?;
        }
        groups.count();
        Ok(groups)
    }

    /// What this rank had to send on an axis since it has company there.
    pub fn sent(&self, axis: Axis) -> Sent {
        let here = self.counters.iter().filter(|(which, _)| *which == axis);
        here.fold(Sent::default(), |sum, (_, counters)| sum.and(&counters.sent_in_all()))
    }

    /// Gives up on every axis, so that nobody takes this rank, which ends because of another, for one
    /// that is simply gone.
    pub fn abort(&mut self, why: &str) {
        for (_, company) in self.all() {
            company.iter().for_each(|comm| comm.abort(why));
        }
    }

    fn all(&mut self) -> [(Axis, &mut Company); 13] {
        [
            (Axis::World, &mut self.world),
            (Axis::Tensor, &mut self.tensor),
            (Axis::Context, &mut self.context),
            (Axis::Context, &mut self.ring.to),
            (Axis::Context, &mut self.ring.from),
            (Axis::Data, &mut self.data),
            (Axis::Shard, &mut self.shard),
            (Axis::Replica, &mut self.replica),
            (Axis::Forward, &mut self.forward.to),
            (Axis::Forward, &mut self.forward.from),
            (Axis::Backward, &mut self.backward.to),
            (Axis::Backward, &mut self.backward.from),
            (Axis::Tied, &mut self.tied),
        ]
    }

    /// Has everything counted from now on, each axis by itself, also where the company is the same.
    fn count(&mut self) {
        let mut counters = Vec::new();
        for (axis, company) in self.all() {
            if let Some(comm) = company.take() {
                let counted = Counted::new(comm);
                counters.push((axis, counted.counters()));
                *company = Some(Arc::new(counted));
            }
        }
        self.counters = counters;
    }
}

impl Link {
    fn take(&mut self, company: Company, stage: usize, (sender, receiver): (usize, usize)) {
        if stage == sender {
            self.to = company;
        } else if stage == receiver {
            self.from = company;
        }
    }
}

/// Some of the ranks. What goes wrong among them is told with their numbers in the world.
fn split(world: &dyn Comm, colour: Option<usize>, key: usize) -> Result<Company, CommError> {
    let part = world.split(colour.map(|colour| colour as u32), key as i64)?;
    let Some(part) = part else { return Ok(None) };
    Ok(Some(Arc::new(Named::new(Arc::from(part), world.rank())?)))
}

#[cfg(test)]
mod tests {
    use regatta_comm::{Collectives, ReduceOp, fake};

    use super::*;

    #[test]
    fn what_is_sent_is_known_by_axis() {
        let mesh = Mesh { dp: 2, cp: 1, tp: 2, pp: 2, shard: 2 };
        std::thread::scope(|scope| {
            for world in fake::world(8) {
                scope.spawn(move || {
                    let groups = Groups::new(Arc::new(world), mesh).unwrap();
                    assert!(Axis::ALL.iter().all(|axis| groups.sent(*axis) == Sent::default()));
                    let sum = |company: &Company, numbers: usize| {
                        let comm = company.as_ref().unwrap();
                        comm.all_reduce(&mut vec![0f32; numbers], ReduceOp::Sum).unwrap();
                    };
                    sum(&groups.tensor, 2);
                    sum(&groups.data, 4);
                    sum(&groups.world, 8);
                    match &groups.forward.to {
                        Some(comm) if comm.rank() == 0 => comm.send(&[0u8; 5], 1, 0).unwrap(),
                        _ => unreachable!("every stage sends to one"),
                    }
                    groups.forward.from.as_ref().unwrap().receive(&mut [0u8; 5], 0, 0).unwrap();
                    let sent = |axis| groups.sent(axis).all_bytes();
                    assert_eq!([sent(Axis::Tensor), sent(Axis::Data)], [8, 16]);
                    // 2 * 7/8 of 32 bytes.
                    assert_eq!([sent(Axis::World), sent(Axis::Forward)], [56, 5]);
                    assert_eq!([sent(Axis::Shard), sent(Axis::Backward)], [0, 0]);
                });
            }
        });
    }
}
