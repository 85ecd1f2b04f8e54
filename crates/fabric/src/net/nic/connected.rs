//! Connections that have an endpoint of their own: how they are established, and what they post.

use std::collections::HashMap;

use super::Buffer;
use super::io::{Event, Io, Operation, accepted};
use crate::FiResult;
use crate::endpoint::{ConnectRequest, ConnectedEp, ConnectionEvent};

/// Events that are handled in a row.
const MAX_EVENTS: usize = 16;

/// Bytes of a request for a connection: the receiver's number of it, and the key of that one.
const REQUEST_BYTES: usize = 12;

/// The endpoints of connections, by the numbers of these.
#[derive(Default)]
pub struct Connections {
    all: HashMap<u32, ConnectionEp>,
    /// How many are being established.
    pending: usize,
}

struct ConnectionEp {
    state: EpState,
    /// What a sender must know.
    key: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EpState {
    /// The sender has not asked for the connection yet.
    Expected,
    /// It is being established.
    Pending(ConnectedEp),
    /// Messages can be posted.
    Open(ConnectedEp),
}

impl ConnectionEp {
    fn ep(&self) -> Option<ConnectedEp> {
        match self.state {
            EpState::Expected => None,
            EpState::Pending(ep) | EpState::Open(ep) => Some(ep),
        }
    }
}

impl Connections {
    fn insert(&mut self, id: u32, state: EpState, key: u64) {
        self.all.insert(id, ConnectionEp { state, key });
        self.pending += 1;
    }

    fn remove(&mut self, id: u32) -> Option<ConnectedEp> {
        let removed = self.all.remove(&id)?;
        self.pending -= usize::from(!matches!(removed.state, EpState::Open(_)));
        removed.ep()
    }

    fn find(&self, ep: ConnectedEp) -> Option<u32> {
        self.all.iter().find(|(_, one)| one.ep() == Some(ep)).map(|(id, _)| *id)
    }
}

impl Io {
    /// Asks the receiver for a connection, whose number and key are these.
    pub fn connect(&mut self, id: u32, address: &[u8], (peer, key): (u32, u64)) -> FiResult {
        let mut data = [0; REQUEST_BYTES];
        data[..4].copy_from_slice(&peer.to_le_bytes());
        data[4..].copy_from_slice(&key.to_le_bytes());
        let ep = self.endpoint.connect(address, &data)?;
        self.connections.insert(id, EpState::Pending(ep), 0);
        Ok(())
    }

    /// A sender that knows the key may ask for a connection.
    pub fn expect(&mut self, id: u32, key: u64) {
        self.connections.insert(id, EpState::Expected, key);
    }

    /// Makes progress with connections that are being established.
    pub fn poll_pending_connections(&mut self) -> FiResult {
        // A system call, which established connections need rarely.
        if self.connections.pending > 0 { self.poll_connections() } else { Ok(()) }
    }

    /// Handles what happened to connections.
    pub fn poll_connections(&mut self) -> FiResult {
        if !self.endpoint.info.is_connection_oriented {
            return Ok(());
        }
        for _ in 0..MAX_EVENTS {
            let Some(event) = self.endpoint.poll_connections()? else { break };
            match event {
                ConnectionEvent::Requested(request) => self.requested(&request),
                ConnectionEvent::Connected(ep) => self.connected(ep),
                ConnectionEvent::Closed(ep) => {
                    self.events.extend(self.connections.find(ep).map(|id| (id, Event::Closed)));
                }
                ConnectionEvent::Failed(ep, why) => {
                    let failed = |id| (id, Event::Failed(why));
                    self.events.extend(self.connections.find(ep).map(failed));
                }
            }
        }
        Ok(())
    }

    fn connected(&mut self, ep: ConnectedEp) {
        let Some(connection) = self.connections.find(ep) else { return };
        let Some(one) = self.connections.all.get_mut(&connection) else { return };
        if one.state == EpState::Pending(ep) {
            one.state = EpState::Open(ep);
            self.connections.pending -= 1;
            self.events.push((connection, Event::Established));
        }
    }

    /// Accepts a connection that is expected, and rejects others.
    fn requested(&mut self, request: &ConnectRequest) {
        let expected = decode(&request.data).and_then(|(id, key)| {
            let one = self.connections.all.get_mut(&id)?;
            (one.state == EpState::Expected && one.key == key).then_some((id, one))
        });
        let Some((connection, one)) = expected else { return self.endpoint.reject(request) };
        match self.endpoint.accept(request) {
            Ok(ep) => one.state = EpState::Pending(ep),
            Err(why) => self.events.push((connection, Event::Failed(why))),
        }
    }

    /// Posts a message of a connection, once it is established.
    pub(super) fn post_connected(
        &mut self,
        id: u32,
        is_send: bool,
        Buffer { start, length, region, .. }: Buffer,
        operation: Operation,
    ) -> FiResult<bool> {
        let state = self.connections.all.get(&id).map(|one| one.state);
        let Some(EpState::Open(ep)) = state else { return Ok(false) };
        let bytes = std::ptr::slice_from_raw_parts_mut(start, length);
        let endpoint = &mut *self.endpoint;
        // SAFETY: the host program keeps the memory valid until the request is complete or released.
        let post =
            |context| unsafe { endpoint.post_connected(ep, is_send, bytes, region, context) };
        accepted(self.operations.post(operation, post))
    }

    /// Closes the endpoint of a connection, and forgets its operations: what is posted completes as cancelled, or
    /// not at all. Returns false if the provider does not close it.
    pub fn close_connected(&mut self, id: u32) -> FiResult<bool> {
        let Some(ep) = self.connections.remove(id) else { return Ok(true) };
        if !self.endpoint.close_connected(ep) {
            return Ok(false);
        }
        // Completions in the queue name contexts, which are reused afterwards. There are at most so many.
        let queued = self.operations.iter().count();
        for _ in 0..queued {
            if !self.poll()? {
                break;
            }
        }
        self.operations.retain(
            |operation| !matches!(operation, Operation::Data { connection, .. } if *connection == id),
        );
        Ok(true)
    }
}

/// The number and key in a request for a connection.
fn decode(data: &[u8]) -> Option<(u32, u64)> {
    let (id, key) = data.split_first_chunk()?;
    Some((u32::from_le_bytes(*id), u64::from_le_bytes(key.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_another_length_are_rejected() {
        let data = [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(data.len(), REQUEST_BYTES);
        assert_eq!(decode(&data), Some((1, 2)));
        assert_eq!((decode(&data[..11]), decode(&[0; 13]), decode(&[])), (None, None, None));
    }
}
