//! Ranks on many nodes, in host memory: through shared memory inside a node, through the network
//! across, each node's traffic once.
//!
//! What is large and reduced is cut into shares: each rank of a node reduces one of them, meets the
//! ranks of the other nodes that have the same share, and all get all shares back. What is small, or
//! where nodes have different numbers of ranks, goes through the first rank of each node. All-gather,
//! reduce-scatter, gather, scatter and all-to-alls of short blocks go by columns, if nodes have the
//! same number of ranks; if not, gather and scatter go through the first ranks, and the rest through
//! the network as if there were no nodes. Messages between two ranks of a node stay inside it.

mod columns;
mod layout;
mod messages;
mod part;
mod rooted;
mod turned;
mod two_level;

use std::sync::Arc;

use crate::background::{Abort, Background, Engine, Memory, Over, apart, gathered};
use crate::blame::Waits;
use crate::error::Peer;
use crate::shm::ShmEngine;
use crate::tcp::TcpEngine;
use crate::whole::Whole;
use crate::{Call, CommError, Kind, join, shm};
use layout::Layout;
use part::Part;

/// One rank.
struct Host {
    /// All ranks, through the network.
    world: TcpEngine,
    /// Those of this node, if there are others.
    local: Option<Part<ShmEngine>>,
    /// One of each node: those with this rank's number there, or the first ones.
    across: Option<Part<TcpEngine>>,
    /// What is wrong with a collective, of which each engine knows a part.
    whole: Option<Box<dyn Whole>>,
    layout: Layout,
    naming: Naming,
    /// How to make all engines give up.
    parts: Vec<Abort>,
    /// How many collectives were begun.
    calls: u64,
    failed: Option<CommError>,
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
            debug: settings.debug,
            join_within: settings.join_within,
            ..shm::Settings::default()
        },
    };
    let world = join::engine(settings)?;
    Ok(Background::new(Host::compose(world, naming)?))
}

impl Host {
    /// Adds shared memory to ranks that are connected.
    fn compose(mut world: TcpEngine, naming: Naming) -> Result<Box<dyn Engine>, CommError> {
        let whole = world.whole();
        let layout = Layout::new(world.rank(), &everybodys(&mut world, naming.node)?);
        let over = || whole.as_ref().and_then(|whole| whole.verdict());
        let joined = Self::local(&world, &layout, &naming, &over)
            .and_then(|local| Ok((local, Self::across(&mut world, &layout)?)));
        let (local, across) = match (joined, &whole) {
            (Ok(parts), _) => parts,
            // The others may wait for this rank where they do not hear that it is gone.
            (Err(error), Some(whole)) => {
                whole.abort()(&error.to_string());
                return Err(whole.verdict().unwrap_or(error));
            }
            (Err(error), None) => return Err(error),
        };
        let inside = local.as_ref().map(|part| part.engine.abort());
        let outside = across.as_ref().map(|part| part.engine.abort());
        let parts = inside.into_iter().chain(outside).chain([world.abort()]);
        let parts: Vec<Abort> = parts.collect();
        if let Some(whole) = &whole {
            let parts = parts.clone();
            let over = Arc::new(move |why: &str| parts.iter().for_each(|abort| abort(why)));
            let none: Waits = Arc::new(Vec::new);
            whole.when_over(over, local.as_ref().map_or(none, Part::waits));
        }
        let (calls, failed) = (0, None);
        Ok(Box::new(Self { world, local, across, whole, layout, naming, parts, calls, failed }))
    }

    /// The ranks of this node, if there are others.
    fn local(
        world: &TcpEngine,
        layout: &Layout,
        naming: &Naming,
        over: &dyn Fn() -> Option<CommError>,
    ) -> Result<Option<Part<ShmEngine>>, CommError> {
        if layout.members.len() == 1 {
            return Ok(None);
        }
        let name = format!("{}.{}.{}", naming.name, naming.splits, layout.node);
        let peers = world.peers();
        let own = layout.members.iter().map(|&r| peers[r as usize].clone()).collect();
        let engine = shm::join_unless(&name, layout.local, own, naming.settings, over)?;
        Ok(Some(Part { engine, members: layout.members.clone() }))
    }

    /// One rank of each node, if there are several.
    fn across(
        world: &mut TcpEngine,
        layout: &Layout,
    ) -> Result<Option<Part<TcpEngine>>, CommError> {
        if layout.nodes == 1 {
            return Ok(None);
        }
        let takes_part = layout.even || layout.local == 0;
        let colour = takes_part.then_some(layout.local);
        let engine = world.split_off(colour, i64::from(layout.node))?;
        Ok(engine.map(|engine| Part { engine, members: layout.across() }))
    }

    /// Whether a collective is done in parts, by several engines.
    fn in_parts(&self) -> bool {
        self.layout.nodes > 1 && !self.layout.is_flat()
    }
}

impl Host {
    /// Messages between some.
    fn run_messages(&mut self, messages: Vec<Call<'_>>) -> Result<(), CommError> {
        self.usable()?;
        self.exchange(messages).map_err(|mut error| {
            // Shared memory has counted its parts of collectives.
            if let CommError::Disagree { sequence, .. } = &mut error {
                *sequence = self.calls;
            }
            self.fail(error, "messages")
        })
    }

    /// A collective in which all take part.
    fn run_collective(&mut self, call: Call<'_>) -> Result<(), CommError> {
        self.usable()?;
        self.calls += 1;
        let in_parts = self.in_parts();
        let signature = call.signature(self.layout.ranks());
        if let Some(whole) = self.whole.as_mut().filter(|_| in_parts)
            && let Err(error) = whole.begin(signature)
        {
            return Err(self.fail(error, &signature.to_string()));
        }
        if let Err(error) = self.two_level(call) {
            return Err(self.fail(error, &signature.to_string()));
        }
        if let Some(whole) = self.whole.as_mut().filter(|_| in_parts) {
            whole.end();
        }
        Ok(())
    }

    /// After an error there is nothing but that error.
    fn usable(&self) -> Result<(), CommError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// What all are told when something failed here. Those of other nodes would wait for us, and
    /// ours for them.
    fn fail(&mut self, error: CommError, doing: &str) -> CommError {
        // One engine alone says itself what is wrong; but it may have been ended by what is known
        // of the whole, and who is late may wait in another communicator, of which it knows nothing.
        let elsewhere = matches!(error, CommError::Aborted { .. } | CommError::Late { .. });
        let asks = self.in_parts() || elsewhere;
        let told = self.whole.as_mut().filter(|_| asks).map(|whole| whole.explain(error.clone()));
        let mut error = match (error, told) {
            // Who has found it out himself knows it best.
            (known @ CommError::Unmatched { .. }, _) => known,
            (error, told) => told.unwrap_or(error),
        };
        match &mut error {
            CommError::Lost { call, .. } | CommError::Path { call, .. } => doing.clone_into(call),
            CommError::Late { call, .. } if call.is_empty() => doing.clone_into(call),
            _ => {}
        }
        if !matches!(error, CommError::Shape { .. }) {
            let why = error.to_string();
            self.parts.iter().for_each(|abort| abort(&why));
            self.failed = Some(error.clone());
        }
        error
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
    let all = gathered(world, &own.to_le_bytes())?;
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
        match call.kind {
            Kind::Send | Kind::Receive => self.run_messages(vec![call]),
            _ => self.run_collective(call),
        }
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
        self.usable()?;
        self.naming.splits += 1;
        let part =
            self.world.split_off(colour, key).map_err(|error| self.fail(error, "a split"))?;
        let Some(part) = part else { return Ok(None) };
        // By which split it came: no two communicators of a job have one name.
        let Naming { name, splits, .. } = &self.naming;
        let name = format!("{name}.{splits}-{}", colour.unwrap_or_default());
        Self::compose(part, Naming { name, splits: 0, ..self.naming.clone() }).map(Some)
    }

    fn memory(&self) -> Memory {
        self.local.as_ref().map_or_else(Memory::default, |local| local.engine.memory())
    }

    fn abort(&self) -> Abort {
        // What is told of the whole first, so that it is this that all hear.
        let whole = self.whole.as_ref().map(|whole| whole.abort());
        let all: Vec<Abort> = whole.into_iter().chain(self.parts.iter().cloned()).collect();
        Arc::new(move |why| all.iter().for_each(|abort| abort(why)))
    }

    fn over(&self) -> Over {
        let whole = self.whole.as_ref().map(|whole| whole.over());
        let local = self.local.as_ref().map(|local| local.engine.over());
        let all: Vec<Over> = whole.into_iter().chain(local).chain([self.world.over()]).collect();
        Arc::new(move || all.iter().any(|over| over()))
    }
}
