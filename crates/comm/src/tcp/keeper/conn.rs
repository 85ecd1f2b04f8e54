//! One connection of the keeper.

use std::io::{ErrorKind, Read, Write};
use std::net::IpAddr;
use std::time::Instant;

use mio::net::TcpStream;
use regatta_wire::link::{Link, Step};

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// It has not said.
    Stranger(IpAddr),
    /// A rank, at rank 0.
    Rank(u32),
    /// Rank 0, at a rank.
    Hub,
}

/// A socket and its link.
pub struct Conn {
    pub stream: TcpStream,
    pub link: Link,
    pub who: Who,
}

impl Conn {
    pub fn new(stream: TcpStream, link: Link, who: Who) -> Self {
        Self { stream, link, who }
    }

    /// Reads all that is there. Something given back: why it is over.
    pub fn read(&mut self, frames: &mut Vec<Vec<u8>>, now: Instant) -> Option<String> {
        let mut buffer = [0; 16 << 10];
        let mut steps = Vec::new();
        let end = loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break Some("it closed its connection".to_owned()),
                Ok(count) => {
                    let taken = self.link.receive(&buffer[..count], now, &mut steps);
                    // An answer, or why it is refused. If it does not go out now it does later.
                    let _ = self.write();
                    if let Err(error) = taken {
                        break Some(error.to_string());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        frames.extend(steps.into_iter().filter_map(|step| match step {
            Step::Frame(frame) => Some(frame),
            Step::Ready => None,
        }));
        end
    }

    /// Writes what goes.
    pub fn write(&mut self) -> std::io::Result<()> {
        while !self.link.pending().is_empty() {
            match self.stream.write(self.link.pending()) {
                Ok(count) => self.link.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
