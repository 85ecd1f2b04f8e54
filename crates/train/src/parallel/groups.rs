//! The communicators of a rank: one for each axis of the mesh on which it has company.

use std::sync::Arc;

use regatta_comm::{Comm, CommError};

use super::mesh::{Mesh, Seat};

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
            data: None,
            shard: None,
            replica: None,
            forward: Link::default(),
            backward: Link::default(),
            tied: None,
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
        let mut groups = Self {
            mesh,
            seat,
            tensor: together(tp, (stage * dp + copy) * cp + part, slice)?,
            context: together(cp, (stage * dp + copy) * tp + slice, part)?,
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
            world: Some(world.clone()),
        };
        if pp > 1 {
            for sender in 0..pp {
                let receiver = (sender + 1) % pp;
                groups.forward.take(link(sender, receiver)?, stage, (sender, receiver));
                groups.backward.take(link(receiver, sender)?, stage, (receiver, sender));
            }
            groups.tied = link(0, pp - 1)?;
        }
        Ok(groups)
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

fn split(world: &dyn Comm, colour: Option<usize>, key: usize) -> Result<Company, CommError> {
    let part = world.split(colour.map(|colour| colour as u32), key as i64)?;
    Ok(part.map(Arc::from))
}
