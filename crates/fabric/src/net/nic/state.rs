//! The connections of an endpoint, and what they have to do. No I/O: its lock is held briefly.

use std::collections::BTreeMap;

use super::connection::{Closed, ConnectionState, Role, Step};
use super::io::{Action, Event, Item};
use super::{Buffer, TestResult};
use crate::net::{NetResult, tag};

/// The connections.
#[derive(Default)]
pub struct State {
    pub connections: BTreeMap<u32, ConnectionState>,
    last_connection: u32,
    /// Requests with steps to do.
    work: Vec<(u32, u8)>,
    /// Connections that their peers have closed.
    closing: Vec<u32>,
    /// Requests with many bytes, which a thread of the plug-in moves.
    bulk: usize,
    /// Whether operations were cancelled, or there are too many peers.
    pub is_retired: bool,
    /// Why the endpoint failed.
    pub failure: Option<String>,
}

impl State {
    pub fn check(&self) -> NetResult {
        self.failure.as_ref().map_or(Ok(()), |why| Err(format!("the endpoint failed: {why}")))
    }

    /// A connection that works.
    pub fn connection(&mut self, id: u32) -> NetResult<&mut ConnectionState> {
        self.check()?;
        let connection = self.connections.get_mut(&id).ok_or("the connection is closed")?;
        connection.check()?;
        Ok(connection)
    }

    /// The next number that is not in use. Numbers are reused as late as possible: messages of a closed
    /// connection may still arrive.
    pub fn next_connection(&mut self) -> NetResult<u32> {
        let limit = 1 << tag::CONNECTION_BITS;
        for _ in 0..limit {
            self.last_connection = (self.last_connection + 1) % limit;
            if !self.connections.contains_key(&self.last_connection) {
                return Ok(self.last_connection);
            }
        }
        Err(format!("{limit} connections are open"))
    }

    /// A request was started. Returns whether it has many bytes.
    pub fn started(&mut self, id: u32, slot: u8) -> bool {
        self.work.push((id, slot));
        let request = self.connections.get_mut(&id).and_then(|one| one.request(slot));
        let is_bulk = request.is_some_and(|request| request.is_bulk);
        self.bulk += usize::from(is_bulk);
        is_bulk
    }

    /// Ends a request that is complete.
    pub fn take_done(&mut self, id: u32, slot: u8) -> Option<TestResult> {
        let (done, is_bulk) = self.connections.get_mut(&id)?.take_done(slot)?;
        self.bulk -= usize::from(is_bulk);
        Some(done)
    }

    /// Whether requests with many bytes are in flight.
    pub fn has_bulk(&self) -> bool {
        self.bulk > 0 && self.failure.is_none()
    }

    /// Removes a connection.
    pub fn remove(&mut self, id: u32) -> Option<ConnectionState> {
        let connection = self.connections.remove(&id)?;
        self.bulk -= connection.requests().filter(|one| one.is_bulk).count();
        Some(connection)
    }

    /// Forgets the steps that requests of a connection have to do.
    pub fn drop_work(&mut self, id: u32) {
        self.work.retain(|(connection, _)| *connection != id);
    }

    /// Takes what requests have to do: the actions of a request follow each other.
    pub fn take_items(&mut self, items: &mut Vec<Item>) {
        for (id, slot) in std::mem::take(&mut self.work) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let Some(request) = connection.request(slot).copied() else { continue };
            let Some(peer) = connection.peer.as_ref().filter(|_| !connection.has_failed()) else {
                continue;
            };
            let to = peer.address;
            let mut push = |step, action| items.push(Item { connection: id, slot, step, action });
            match request.step {
                Step::Send { tag } => {
                    let [buffer, ..] = request.buffers;
                    push(request.step, Action::Send { to, buffer, tag });
                }
                Step::Flush { from } => push(request.step, Action::Read { from }),
                Step::Receive { .. } | Step::ClearToSend => {
                    let first = match request.step {
                        Step::Receive { index } => index,
                        _ => request.count,
                    };
                    for index in first..request.count {
                        let tag = tag::data(id, request.sequence, index);
                        let buffer: Buffer = request.buffers[index];
                        let action = Action::Receive { buffer, tag, index: index as u8 };
                        push(Step::Receive { index }, action);
                    }
                    if let Some((to, message)) = connection.clear_to_send(&request) {
                        push(Step::ClearToSend, Action::ClearToSend { to, message });
                    }
                }
                Step::Wait => {}
            }
        }
    }

    /// A request goes on with a step.
    pub fn set_step(&mut self, id: u32, slot: u8, step: Step) {
        let request = self.connections.get_mut(&id).and_then(|one| one.request(slot));
        if let Some(request) = request {
            request.step = step;
        }
    }

    /// Requests whose steps have to be tried again, before those that were started since: the messages of a
    /// connection may have to be posted in order.
    pub fn try_again(&mut self, refused: Vec<(u32, u8)>) {
        self.work.splice(0..0, refused);
    }

    /// Something happened to a connection. Strays are dropped.
    pub fn apply(&mut self, id: u32, event: Event) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match event {
            Event::Granted(message) => {
                if connection.key == message.key
                    && let Role::Send(grants) = &mut connection.role
                    && !grants.add(&message)
                {
                    connection.fail(format!("unexpected clear-to-send {}", message.sequence));
                }
            }
            Event::Completed { slot, index, bytes } => {
                connection.complete(slot, index.into(), bytes);
            }
            Event::Established => connection.is_established = true,
            Event::Closed => self.closed(id, Closed::Data),
            Event::Failed(why) => connection.fail(why),
        }
    }

    /// The peer of a connection closed it.
    pub fn closed(&mut self, id: u32, what: Closed) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.closed(what);
            if !self.closing.contains(&id) {
                self.closing.push(id);
            }
        }
    }

    /// Fails connections that were closed a while ago.
    pub fn check_closed(&mut self) {
        let connections = &mut self.connections;
        self.closing.retain(|id| {
            let Some(connection) = connections.get_mut(id) else { return false };
            connection.check_closed();
            !connection.has_failed()
        });
    }
}
