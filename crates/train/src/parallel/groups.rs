//! The process groups of a rank: one communicator per mesh axis on which there are other ranks.

use std::sync::Arc;

use regatta_comm::{Comm, CountingComm, TrafficCounters, TrafficSnapshot, TranslatedComm};

use super::Result;
use regatta_predict::axis::Axis;
use regatta_predict::mesh::{Mesh, MeshCoord};

/// The communicator of a group; `None` if the group has one rank.
pub type ProcessGroup = Option<Arc<dyn Comm>>;

/// All process groups of a rank.
#[derive(Clone)]
pub struct ProcessGroups {
    /// The device mesh.
    pub mesh: Mesh,
    /// This rank's coordinate in the mesh.
    pub coord: MeshCoord,
    /// All ranks.
    pub world: ProcessGroup,
    /// Tensor-parallel group.
    pub tensor: ProcessGroup,
    /// Context-parallel group.
    pub context: ProcessGroup,
    /// Ring of the context-parallel group.
    pub context_ring: P2pLink,
    /// Ranks with the same parameters: data-parallel replicas and context-parallel ranks.
    pub data: ProcessGroup,
    /// ZeRO shard group: ranks of `data` that partition the state.
    pub shard: ProcessGroup,
    /// ZeRO replica group: ranks of `data` with the same shard.
    pub replica: ProcessGroup,
    /// Pipeline activations: to the next stage, from the previous one.
    pub forward: P2pLink,
    /// Pipeline gradients: to the previous stage, from the next one.
    pub backward: P2pLink,
    /// Embedding group: first and last pipeline stage, which both have a tied embedding.
    pub embedding: ProcessGroup,
    counters: Vec<(Axis, Arc<TrafficCounters>)>,
}

/// A directed link between neighbours. Each communicator has two ranks: 0 sends, 1 receives.
#[derive(Clone, Default)]
pub struct P2pLink {
    /// To the peer that this rank sends to.
    pub send_to: ProcessGroup,
    /// From the peer that this rank receives from.
    pub recv_from: ProcessGroup,
}

impl ProcessGroups {
    /// A world of one rank.
    pub fn single_rank() -> Self {
        let mesh = Mesh::data_parallel(1);
        Self {
            mesh,
            coord: mesh.coord(0),
            world: None,
            tensor: None,
            context: None,
            context_ring: P2pLink::default(),
            data: None,
            shard: None,
            replica: None,
            forward: P2pLink::default(),
            backward: P2pLink::default(),
            embedding: None,
            counters: Vec::new(),
        }
    }

    /// Splits the world by the mesh. Collective: all ranks call it with the same mesh.
    pub fn new(world: Arc<dyn Comm>, mesh: Mesh) -> Result<Self> {
        if mesh.ranks() == 1 {
            return Ok(Self::single_rank());
        }
        let coord = mesh.coord(world.rank() as usize);
        let Mesh { dp, cp, tp, pp, shard } = mesh;
        let data_rank = coord.data_rank(&mesh);
        let replicas = mesh.data_ranks() / shard;
        // Ranks that differ on one axis only have the same color for that axis.
        let tensor_color = (coord.pp * dp + coord.dp) * cp + coord.cp;
        let context_color = (coord.pp * dp + coord.dp) * tp + coord.tp;
        let data_color = coord.pp * tp + coord.tp;
        let shard_color = data_color * replicas + data_rank / shard;
        let replica_color = data_color * shard + data_rank % shard;
        let pipeline_color = data_rank * tp + coord.tp;
        let group = |size: usize, color: usize, key: usize| match size {
            1 => Ok(None),
            size if size == mesh.ranks() => Ok(Some(world.clone())),
            _ => split(&*world, Some(color), key),
        };
        // A two-rank communicator between two coordinates of an axis, for all colors at once.
        let pair = |at: usize, color: usize, from: usize, to: usize| {
            let color = (at == from || at == to).then_some(color);
            split(&*world, color, usize::from(at == to))
        };
        let mut groups = Self {
            mesh,
            coord,
            tensor: group(tp, tensor_color, coord.tp)?,
            context: group(cp, context_color, coord.cp)?,
            data: group(mesh.data_ranks(), data_color, data_rank)?,
            shard: group(shard, shard_color, data_rank % shard)?,
            replica: group(replicas, replica_color, data_rank / shard)?,
            world: Some(world.clone()),
            ..Self::single_rank()
        };
        if cp > 1 {
            for from in 0..cp {
                let to = (from + 1) % cp;
                let comm = pair(coord.cp, context_color, from, to)?;
                groups.context_ring.connect(comm, coord.cp, from, to);
            }
        }
        if pp > 1 {
            for from in 0..pp {
                let to = (from + 1) % pp;
                let forward = pair(coord.pp, pipeline_color, from, to)?;
                groups.forward.connect(forward, coord.pp, from, to);
                let backward = pair(coord.pp, pipeline_color, to, from)?;
                groups.backward.connect(backward, coord.pp, to, from);
            }
            groups.embedding = pair(coord.pp, pipeline_color, 0, pp - 1)?;
        }
        groups.count_traffic();
        Ok(groups)
    }

    /// What this rank sent on an axis since the groups exist.
    pub fn sent(&self, axis: Axis) -> TrafficSnapshot {
        let counters = self.counters.iter().filter(|(other, _)| *other == axis);
        counters.fold(TrafficSnapshot::default(), |sum, (_, counters)| {
            sum.plus(&counters.snapshot_with_splits())
        })
    }

    /// Aborts all groups, so that peers report the cause instead of a lost connection.
    pub fn abort(&mut self, why: &str) {
        for (_, group) in self.by_axis() {
            group.iter().for_each(|comm| comm.abort(why));
        }
    }

    fn by_axis(&mut self) -> [(Axis, &mut ProcessGroup); 13] {
        [
            (Axis::World, &mut self.world),
            (Axis::Tensor, &mut self.tensor),
            (Axis::Context, &mut self.context),
            (Axis::Context, &mut self.context_ring.send_to),
            (Axis::Context, &mut self.context_ring.recv_from),
            (Axis::Data, &mut self.data),
            (Axis::Shard, &mut self.shard),
            (Axis::Replica, &mut self.replica),
            (Axis::Forward, &mut self.forward.send_to),
            (Axis::Forward, &mut self.forward.recv_from),
            (Axis::Backward, &mut self.backward.send_to),
            (Axis::Backward, &mut self.backward.recv_from),
            (Axis::Tied, &mut self.embedding),
        ]
    }

    /// Names each group by its axis and wraps it in a traffic counter of its own, also groups with the
    /// same ranks.
    fn count_traffic(&mut self) {
        // Axes may share a communicator: the first one names it.
        for (axis, group) in self.by_axis().into_iter().rev() {
            group.iter().for_each(|comm| comm.set_name(axis.name()));
        }
        let mut counters = Vec::new();
        for (axis, group) in self.by_axis() {
            if let Some(comm) = group.take() {
                let counted = CountingComm::new(comm);
                counters.push((axis, counted.counters()));
                *group = Some(Arc::new(counted));
            }
        }
        self.counters = counters;
    }
}

impl P2pLink {
    /// Keeps a pair's communicator at the end where this rank is.
    fn connect(&mut self, comm: ProcessGroup, at: usize, from: usize, to: usize) {
        if at == from {
            self.send_to = comm;
        } else if at == to {
            self.recv_from = comm;
        }
    }
}

/// Splits the world. Errors of the group name ranks by their world rank.
fn split(world: &dyn Comm, color: Option<usize>, key: usize) -> Result<ProcessGroup> {
    let group = world.split(color.map(|color| color as u32), key as i64)?;
    let Some(group) = group else { return Ok(None) };
    Ok(Some(Arc::new(TranslatedComm::new(Arc::from(group), world.rank())?)))
}

#[cfg(test)]
mod tests {
    use regatta_comm::{Collectives, ReduceOp};
    use regatta_testbed::in_process;

    use super::*;

    #[test]
    fn traffic_is_counted_per_axis() {
        let mesh = Mesh { dp: 2, cp: 1, tp: 2, pp: 2, shard: 2 };
        std::thread::scope(|scope| {
            for world in in_process::world(8) {
                scope.spawn(move || {
                    let groups = ProcessGroups::new(Arc::new(world), mesh).unwrap();
                    let is_unused = |axis| groups.sent(axis) == TrafficSnapshot::default();
                    assert!(Axis::ALL.into_iter().all(is_unused));
                    let all_reduce = |group: &ProcessGroup, elements: usize| {
                        let comm = group.as_ref().unwrap();
                        comm.all_reduce(&mut vec![0f32; elements], ReduceOp::Sum).unwrap();
                    };
                    all_reduce(&groups.tensor, 2);
                    all_reduce(&groups.data, 4);
                    all_reduce(&groups.world, 8);
                    match &groups.forward.send_to {
                        Some(comm) if comm.rank() == 0 => comm.send(&[0u8; 5], 1, 0).unwrap(),
                        _ => unreachable!("every stage sends to one"),
                    }
                    let recv_from = groups.forward.recv_from.as_ref().unwrap();
                    recv_from.receive(&mut [0u8; 5], 0, 0).unwrap();
                    let sent = |axis| groups.sent(axis).total_bytes();
                    assert_eq!([sent(Axis::Tensor), sent(Axis::Data)], [8, 16]);
                    // 2 * 7/8 of 32 bytes.
                    assert_eq!([sent(Axis::World), sent(Axis::Forward)], [56, 5]);
                    assert_eq!([sent(Axis::Shard), sent(Axis::Backward)], [0, 0]);
                });
            }
        });
    }
}
