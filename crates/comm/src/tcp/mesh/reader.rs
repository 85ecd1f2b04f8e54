//! One connection that is read: heads and small messages through a buffer, so that one system call
//! brings many; large ones straight to where they belong.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::target::Target;
use crate::tcp::frame::HEAD;

/// What is reduced should still be in a fast cache.
pub const BUFFER: usize = 128 << 10;

/// From here on a copy costs more than a system call.
const STRAIGHT: usize = 16 << 10;

/// Elements have at most so many bytes; stripes begin at multiples of it.
const ELEMENT: usize = 8;

/// What came of a step.
pub enum Turn {
    /// There is no more for now.
    Empty,
    /// So many bytes were read.
    Got(usize),
    /// A message is complete.
    Complete,
}

/// A part of a message that is to come.
pub struct Part {
    pub message: u64,
    pub at: usize,
    pub left: usize,
}

pub struct Reader {
    pub stream: Arc<TcpStream>,
    pub buffer: ReadBuffer,
    pub parts: VecDeque<Part>,
}

impl Reader {
    pub fn new(stream: Arc<TcpStream>) -> Self {
        Self { stream, buffer: ReadBuffer::default(), parts: VecDeque::new() }
    }
}

#[derive(Default)]
pub struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    /// A head, if one is there.
    pub fn head(&mut self) -> Option<[u8; HEAD]> {
        let head = *self.bytes[self.start..self.end].first_chunk()?;
        self.start += HEAD;
        Some(head)
    }

    /// Reads more.
    pub fn fill(&mut self, stream: &TcpStream) -> Result<Turn, String> {
        self.bytes.resize(BUFFER, 0);
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let Some(count) = receive(stream, &mut self.bytes[self.end..])? else {
            return Ok(Turn::Empty);
        };
        self.end += count;
        Ok(Turn::Got(count))
    }

    /// Puts bytes of a message where they belong: what is in the buffer, or else what comes. Tells
    /// how many.
    pub fn land(
        &mut self,
        stream: &TcpStream,
        target: &mut Target,
        at: usize,
        left: usize,
    ) -> Result<(Turn, usize), String> {
        let have = self.end - self.start;
        if have == 0
            && left >= STRAIGHT
            && let Some(memory) = target.straight(at, left)
        {
            let count = receive(stream, memory)?;
            return Ok(count.map_or((Turn::Empty, 0), |count| (Turn::Got(count), count)));
        }
        // No element is taken apart.
        let whole = if have >= left { left } else { have - have % ELEMENT };
        if whole == 0 {
            return Ok((self.fill(stream)?, 0));
        }
        target.put(at, &self.bytes[self.start..self.start + whole]);
        self.start += whole;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok((Turn::Got(0), whole))
    }
}

/// `None`: there is nothing for now.
fn receive(stream: &TcpStream, into: &mut [u8]) -> Result<Option<usize>, String> {
    loop {
        return match recv(stream, &mut *into, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err("it closed its connection".to_owned()),
            Ok((count, _)) => Ok(Some(count)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(std::io::Error::from(error).to_string()),
        };
    }
}
