//! One connection of the control plane.

use std::io::{ErrorKind, Read};
use std::net::IpAddr;
use std::time::Instant;

use mio::net::TcpStream;
use regatta_wire::link::{Link, LinkEvent};

use crate::control::dial::write_pending;

/// The remote end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnPeer {
    /// A peer that has not authenticated or identified itself.
    Unauthenticated(IpAddr),
    /// A rank, seen from rank 0.
    Rank(u32),
    /// Rank 0, seen from another rank.
    Root,
}

/// A socket and its link.
pub struct Conn {
    pub stream: TcpStream,
    pub link: Link,
    pub peer: ConnPeer,
}

impl Conn {
    pub fn new(stream: TcpStream, link: Link, peer: ConnPeer) -> Self {
        Self { stream, link, peer }
    }

    /// Reads all available frames. Returns the reason if the connection has ended.
    pub fn read(&mut self, frames: &mut Vec<Vec<u8>>, now: Instant) -> Option<String> {
        let mut buffer = [0; 16 << 10];
        let mut steps = Vec::new();
        let end = loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break Some("connection closed by the peer".to_owned()),
                Ok(count) => {
                    let received = self.link.receive(&buffer[..count], now, &mut steps);
                    // Sends a handshake reply or the reason for a rejection, now or later.
                    let _ = self.write();
                    if let Err(error) = received {
                        break Some(error.to_string());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        frames.extend(steps.into_iter().filter_map(|step| match step {
            LinkEvent::Frame(frame) => Some(frame),
            LinkEvent::Ready => None,
        }));
        end
    }

    /// Writes as much as the socket accepts.
    pub fn write(&mut self) -> std::io::Result<()> {
        write_pending(&mut self.stream, &mut self.link)
    }
}
