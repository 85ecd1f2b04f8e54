//! One progress round over all connections.

use super::{DataPlane, LinkDirection};

/// Consecutive rounds for which peers over the unexpected-message limit may be deferred.
const MAX_DEFERRALS: u32 = 64;

/// Links that broke in this round, and why.
type Broken = Vec<(u32, LinkDirection, String)>;

impl DataPlane {
    /// Reads and writes as much as possible without blocking.
    pub fn progress(&mut self) {
        let mut broken = match &mut self.fabric {
            Some(fabric) => fabric.progress(&mut self.comms),
            None => Vec::new(),
        };
        let moved = self.write(&mut broken) | self.read(&mut broken);
        // The awaited message may follow more unexpected messages than the limit allows, so peers
        // over the limit must be read eventually. Other peers are only read first.
        if !moved || self.deferrals >= MAX_DEFERRALS {
            self.deferrals = 0;
            self.read_full(&mut broken);
        } else {
            self.deferrals += 1;
        }
        for (rank, direction, why) in broken {
            self.mark_broken(rank, direction, why);
        }
    }

    /// Returns whether anything was written.
    fn write(&mut self, broken: &mut Broken) -> bool {
        let mut moved = false;
        for (rank, outgoing) in &mut self.outgoing {
            match outgoing.write(&mut self.comms) {
                Ok(wrote) => moved |= wrote,
                Err(error) => {
                    let why = std::io::Error::from(error).to_string();
                    broken.push((*rank, LinkDirection::Send, why));
                }
            }
        }
        moved
    }

    /// Returns whether anything was read.
    fn read(&mut self, broken: &mut Broken) -> bool {
        let mut moved = false;
        for (rank, incoming) in &mut self.incoming {
            match incoming.read(&mut self.comms, self.unexpected_limit) {
                Ok(read) => moved |= read,
                Err(why) => broken.push((*rank, LinkDirection::Recv, why)),
            }
        }
        moved
    }

    /// Reads one message from every peer over the unexpected-message limit.
    fn read_full(&mut self, broken: &mut Broken) {
        let limit = self.unexpected_limit;
        for (rank, incoming) in self.incoming.iter_mut().filter(|(_, i)| i.is_full(limit)) {
            if let Err(why) = incoming.read(&mut self.comms, usize::MAX) {
                broken.push((*rank, LinkDirection::Recv, why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::tcp::data_plane::PostedRecv;
    use crate::tcp::frame::{Header, MessageKey};
    use crate::transport::{MatchKey, RequestId};

    const LENGTH: usize = 1000;

    /// Opens communicator 1, adds a connection from a rank and returns its remote end.
    fn connect(plane: &mut DataPlane, rank: u32) -> TcpStream {
        plane.comms.get(1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        plane.incoming.entry(rank).or_default().add(0, listener.accept().unwrap().0);
        far
    }

    fn key(tag: u32) -> MessageKey {
        MessageKey::new(1, MatchKey::Tag(tag), 0)
    }

    /// Sends a message whose bytes all equal its tag.
    fn send(far: &mut TcpStream, tag: u32) {
        let header = Header { key: key(tag), length: LENGTH as u64, signature_hash: 0, stripes: 1 };
        far.write_all(&[&header.encode()[..], &[tag as u8; LENGTH]].concat()).unwrap();
    }

    fn receive(plane: &mut DataPlane, rank: u32, tag: u32, into: &mut [u8]) -> RequestId {
        plane.receive(rank, PostedRecv::copy(key(tag), 0, RequestId(0), into))
    }

    /// Makes progress until all requests completed.
    fn wait(plane: &mut DataPlane, requests: &[RequestId]) {
        let mut done = Vec::new();
        while !requests.iter().all(|request| done.contains(request)) {
            plane.progress();
            plane.take_completed(1, &mut done);
        }
    }

    #[test]
    fn a_receive_completes_behind_more_unexpected_messages_than_the_limit() {
        let mut plane = DataPlane::new(2 * LENGTH);
        let mut far = connect(&mut plane, 7);
        (0..20).for_each(|tag| send(&mut far, tag));
        for tag in (0..20).rev() {
            let mut into = [99; LENGTH];
            let request = receive(&mut plane, 7, tag, &mut into);
            wait(&mut plane, &[request]);
            assert!(into.iter().all(|byte| *byte == tag as u8), "tag {tag}");
        }
    }

    #[test]
    fn other_peers_are_read_first_when_one_exceeds_the_unexpected_limit() {
        let mut plane = DataPlane::new(2 * LENGTH);
        let (mut full, mut other) = (connect(&mut plane, 7), connect(&mut plane, 8));
        (0..20).for_each(|tag| send(&mut full, tag));
        let (mut last, mut one) = ([0; LENGTH], [0; LENGTH]);
        let awaited = receive(&mut plane, 7, 19, &mut last);
        while !plane.incoming[&7].is_full(2 * LENGTH) {
            plane.progress();
        }
        let queued =
            |plane: &DataPlane| (0..50).find(|n| !plane.incoming[&7].is_full(n * LENGTH)).unwrap();
        let before = queued(&plane);
        send(&mut other, 3);
        let expected = receive(&mut plane, 8, 3, &mut one);
        wait_for_readable(&plane, 8);
        // Reading a header takes at least one round, reading the payload another.
        plane.progress();
        assert_eq!(queued(&plane), before);
        wait(&mut plane, &[expected, awaited]);
        assert_eq!((last, one), ([19; LENGTH], [3; LENGTH]));
    }

    fn wait_for_readable(plane: &DataPlane, rank: u32) {
        let stream = plane.incoming[&rank].streams().next().unwrap();
        while stream.peek(&mut [0]).unwrap() == 0 {}
    }
}
