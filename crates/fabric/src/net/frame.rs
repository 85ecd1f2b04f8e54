//! A length-prefixed message in each direction of a TCP connection, without blocking.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::hello::{Hello, MAX_HELLO_BYTES};

const PREFIX_BYTES: usize = 4;

/// A handshake: sends one message, and receives one.
pub struct Exchange {
    pub stream: TcpStream,
    /// Bytes that remain to be sent.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Exchange {
    /// A handshake over a connection, which must not block.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, outgoing: Vec::new(), incoming: Vec::new() }
    }

    /// Queues a message.
    pub fn send(&mut self, hello: &Hello) {
        let bytes = hello.encode();
        self.outgoing.extend((bytes.len() as u32).to_le_bytes());
        self.outgoing.extend(bytes);
    }

    /// Whether all is sent. Sends as much as possible.
    pub fn flush(&mut self) -> io::Result<bool> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The message of the peer, once it is complete.
    pub fn receive(&mut self) -> io::Result<Option<Hello>> {
        let malformed = || io::Error::new(ErrorKind::InvalidData, "malformed handshake");
        loop {
            let wanted = match self.incoming.first_chunk::<PREFIX_BYTES>() {
                None => PREFIX_BYTES,
                Some(prefix) => match u32::from_le_bytes(*prefix) as usize {
                    length if length > MAX_HELLO_BYTES => return Err(malformed()),
                    length => PREFIX_BYTES + length,
                },
            };
            let missing = wanted - self.incoming.len();
            if missing == 0 {
                let hello = Hello::decode(&self.incoming[PREFIX_BYTES..]);
                return hello.map(Some).ok_or_else(malformed);
            }
            let mut bytes = [0; MAX_HELLO_BYTES];
            match self.stream.read(&mut bytes[..missing.min(MAX_HELLO_BYTES)]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.incoming.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
