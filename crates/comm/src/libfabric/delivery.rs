//! Copies and reductions of received bytes, which run without the lock of the endpoint.

use std::ops::Range;

use super::requests::BounceBuffer;
use crate::network::UserRecv;

/// Received bytes.
pub enum Source {
    Bounce(BounceBuffer, Range<usize>),
    Bytes(Vec<u8>),
}

impl Source {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bounce(bounce, range) => bounce.bytes().get(range.clone()).unwrap_or_default(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Received bytes and the receive they belong to.
pub struct Delivery {
    pub recv: UserRecv,
    /// The offset within the message.
    pub at: usize,
    pub source: Source,
    /// The message of which this is a chunk, or `None` if it is the whole message.
    pub message: Option<u64>,
}

impl Delivery {
    /// Copies or reduces the bytes.
    pub fn run(&mut self) {
        self.recv.buffer.write(self.at, self.source.bytes());
    }
}
