//! Ranks on many nodes, in host memory: through shared memory inside a node, through the network
//! across, each node's traffic once.
//!
//! What is large and reduced is cut into shares: each rank of a node reduces one of them, meets the
//! ranks of the other nodes that have the same share, and all get all shares back. What is small, or
//! where nodes have different numbers of ranks, goes through the first rank of each node.

mod layout;
mod two_level;

use std::sync::Arc;

use crate::background::{Abort, Background, Engine, apart};
use crate::buffer::Buffer;
use crate::error::Peer;
use crate::{Call, CommError, Counts, DType, Kind, ReduceOp, join, shm};
use layout::Layout;

/// One rank.
struct Host {
    /// All ranks, through the network.
    world: Box<dyn Engine>,
    /// Those of this node, if there are others.
    local: Option<Box<dyn Engine>>,
    /// One of each node: those with this rank's number there, or the first ones.
    across: Option<Box<dyn Engine>>,
    layout: Layout,
    naming: Naming,
    failed: Vec<Abort>,
}

/// How sub-communicators are told apart.
#[derive(Clone)]
struct Naming {
    /// What only this job's ranks know.
    name: String,
    /// This node.
    node: u64,
    splits: u64,
    settings: shm::Settings,
}

/// Connects this rank with all others, by the fastest way to each.
pub fn join(settings: join::Settings) -> Result<Background, CommError> {
    let naming = Naming {
        name: settings.secret.derive("shared memory").to_hex(),
        node: fingerprint(&settings.node),
        splits: 0,
        settings: shm::Settings {
            desync_after: settings.desync_after,
            join_within: settings.join_within,
            ..shm::Settings::default()
        },
    };
    let world = Box::new(join::engine(settings)?);
    Ok(Background::new(Host::compose(world, naming)?))
}

impl Host {
    /// Adds shared memory to ranks that are connected.
    fn compose(mut world: Box<dyn Engine>, naming: Naming) -> Result<Box<dyn Engine>, CommError> {
        let nodes = everybodys(world.as_mut(), naming.node)?;
        let layout = Layout::new(world.rank(), &nodes);
        let peers = world.peers();
        let local = match layout.members.len() {
            1 => None,
            _ => {
                let name = format!("{}.{}.{}", naming.name, naming.splits, layout.node);
                let own = layout.members.iter().map(|&r| peers[r as usize].clone()).collect();
                let engine = shm::join(&name, layout.local, own, naming.settings)?;
                Some(Box::new(engine) as Box<dyn Engine>)
            }
        };
        let across = match (layout.nodes, layout.even || layout.local == 0) {
            (1, _) => None,
            (_, takes_part) => {
                let colour = takes_part.then_some(layout.local);
                world.split(colour, i64::from(layout.node))?
            }
        };
        let engines = [Some(&world), local.as_ref(), across.as_ref()];
        let failed = engines.into_iter().flatten().map(|engine| engine.abort()).collect();
        Ok(Box::new(Self { world, local, across, layout, naming, failed }))
    }
}

impl Host {
    /// Messages go the way that all of them can go.
    fn run_messages(&mut self, messages: Vec<Call<'_>>) -> Result<(), CommError> {
        let done = match (self.local.as_mut(), self.layout.nodes) {
            (Some(local), 1) => local.run_group(messages),
            _ => self.world.run_group(messages),
        };
        self.told(done)
    }

    /// Has all others know of an error: those of other nodes would wait for us, and ours for them.
    fn told(&self, done: Result<(), CommError>) -> Result<(), CommError> {
        if let Err(error) = &done {
            let why = error.to_string();
            self.failed.iter().for_each(|abort| abort(&why));
        }
        done
    }
}

/// A number for a text: FNV-1a, the same on every machine.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A number of each rank.
fn everybodys(world: &mut dyn Engine, own: u64) -> Result<Vec<u64>, CommError> {
    let (rank, ranks) = (world.rank() as usize, world.peers().len());
    let mut all = vec![0; ranks * 8];
    all[rank * 8..rank * 8 + 8].copy_from_slice(&own.to_le_bytes());
    world.run(Call {
        kind: Kind::AllGather,
        dtype: DType::U8,
        op: ReduceOp::Sum,
        root: 0,
        tag: 0,
        counts: Counts::Equal(8),
        input: None,
        output: &mut all,
    })?;
    let number = |bytes: &[u8]| {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        u64::from_le_bytes(eight)
    };
    Ok(all.chunks_exact(8).map(number).collect())
}

impl Engine for Host {
    fn rank(&self) -> u32 {
        self.world.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.world.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        let done = self.two_level(call);
        self.told(done)
    }

    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        let (messages, collectives) = apart(calls);
        self.run_messages(messages)?;
        collectives.into_iter().try_for_each(|call| self.run(call))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        self.naming.splits += 1;
        let Some(part) = self.world.split(colour, key)? else { return Ok(None) };
        let name = format!("{}.{}", self.naming.name, colour.unwrap_or_default());
        Self::compose(part, Naming { name, ..self.naming.clone() }).map(Some)
    }

    fn buffer(&self, bytes: usize) -> Buffer {
        match &self.local {
            Some(local) => local.buffer(bytes),
            None => Buffer::zeroed(bytes),
        }
    }

    fn abort(&self) -> Abort {
        let all = self.failed.clone();
        Arc::new(move |why| all.iter().for_each(|abort| abort(why)))
    }
}
