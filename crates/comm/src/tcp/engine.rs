//! Collectives over TCP.

use std::sync::Arc;
use std::time::Duration;

use crate::background::{Abort, Engine, Over, apart, gathered};
use crate::comm::order;
use crate::error::Peer;
use crate::execute::{self, Planner, Room};
use crate::schedule::Algorithm;
use crate::schedule::choose::Table;
use crate::tcp::TcpTransport;
use crate::transport::Transport;
use crate::tune::Tunable;
use crate::whole::Whole;
use crate::{Call, CommError, Kind};

/// Bytes in which a rank says its colour and key.
const SAID: usize = 16;

/// Does collectives on a [`TcpTransport`].
pub struct TcpEngine {
    transport: TcpTransport,
    planner: Planner,
    room: Room,
}

impl TcpEngine {
    /// On a transport, by the algorithms that rank 0 has given to all.
    pub fn new(transport: TcpTransport) -> Self {
        let table = transport.algorithms();
        let planner = Planner::new(table, transport.rank(), &transport.nodes());
        Self { transport, planner, room: Room::default() }
    }

    /// How messages between ranks go: by which provider of libfabric's, or why by TCP.
    pub fn carried(&self) -> &str {
        self.transport.carried()
    }

    /// Messages, as [`execute::messages_beside`].
    pub(crate) fn run_messages_beside(
        &mut self,
        messages: Vec<Call<'_>>,
        beside: &mut dyn FnMut() -> Result<Duration, CommError>,
    ) -> Result<(), CommError> {
        execute::messages_beside(&mut self.transport, messages, beside)
    }

    /// One for the ranks of the same colour, as [`Engine::split`].
    pub(crate) fn split_off(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Self>, CommError> {
        let said = self.said(colour, key)?;
        let Some(colour) = colour else { return Ok(None) };
        let ranks = order(&said, colour);
        let own = self.transport.rank();
        let rank = ranks.iter().position(|&rank| rank == own).unwrap_or(0) as u32;
        let world = |rank: &u32| self.transport.members().get(*rank as usize).copied();
        let members = ranks.iter().filter_map(world).collect();
        let channel = self.transport.child_channel(colour);
        let transport = self.transport.child(channel, members, rank);
        let mut child = Self::new(transport);
        child.planner.set_table(self.planner.table().clone());
        Ok(Some(child))
    }

    /// What all ranks said of colour and key.
    fn said(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Vec<(Option<u32>, i64)>, CommError> {
        let mut own = [0; SAID];
        own[..8].copy_from_slice(&colour.map_or(-1, i64::from).to_le_bytes());
        own[8..].copy_from_slice(&key.to_le_bytes());
        let all = gathered(self, &own)?;
        let number = |bytes: &[u8]| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[..8]);
            i64::from_le_bytes(eight)
        };
        let of = |said: &[u8]| (u32::try_from(number(said)).ok(), number(&said[8..]));
        Ok(all.chunks_exact(SAID).map(of).collect())
    }
}

impl Engine for TcpEngine {
    fn rank(&self) -> u32 {
        self.transport.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.transport.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        if matches!(call.kind, Kind::Send | Kind::Receive) {
            return execute::messages(&mut self.transport, vec![call]);
        }
        let program = self.planner.plan(&call)?;
        execute::run(&mut self.transport, call, &program, &mut self.room)
    }

    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        let (messages, collectives) = apart(calls);
        execute::messages(&mut self.transport, messages)?;
        collectives.into_iter().try_for_each(|call| self.run(call))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        let child = self.split_off(colour, key)?;
        Ok(child.map(|child| Box::new(child) as Box<dyn Engine>))
    }

    fn abort(&self) -> Abort {
        Transport::abort(&self.transport)
    }

    fn over(&self) -> Over {
        self.transport.over()
    }

    fn whole(&self) -> Option<Box<dyn Whole>> {
        Some(Box::new(self.transport.twin()))
    }
}

impl Tunable for TcpEngine {
    fn run_by(&mut self, call: Call<'_>, algorithm: Algorithm) -> Result<(), CommError> {
        let program = self.planner.by(&call, algorithm)?;
        execute::run(&mut self.transport, call, &program, &mut self.room)
    }

    fn nodes(&self) -> &[u32] {
        self.planner.nodes()
    }

    fn set_table(&mut self, table: Arc<Table>) {
        self.planner.set_table(table);
    }
}
