//! The read side of one connection. Headers and small messages go through a buffer, so one system
//! call reads many; large payloads are read directly into their destination.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::incoming::RecvBuffer;
use crate::tcp::frame::HEADER_BYTES;

/// Small enough that data is still in the L2 cache when it is reduced.
pub const BUFFER_BYTES: usize = 128 << 10;

/// From this size on, a copy costs more than a system call.
const DIRECT_READ_MIN: usize = 16 << 10;

/// The largest element size. Stripes start at multiples of it.
const ELEMENT_BYTES: usize = 8;

/// The result of one read step.
pub enum ReadStatus {
    /// The socket has no more data.
    WouldBlock,
    /// This many bytes were read from the socket.
    Read(usize),
    /// A message completed.
    MessageDone,
}

pub type ReadResult = Result<ReadStatus, String>;

/// A stripe that is still to arrive.
pub struct PendingStripe {
    pub message: u64,
    pub at: usize,
    pub left: usize,
}

pub struct Reader {
    pub stream: Arc<TcpStream>,
    pub buffer: ReadBuffer,
    pub stripes: VecDeque<PendingStripe>,
}

#[derive(Default)]
pub struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    /// The next header, if it is buffered.
    pub fn header(&mut self) -> Option<[u8; HEADER_BYTES]> {
        let header = *self.bytes[self.start..self.end].first_chunk()?;
        self.start += HEADER_BYTES;
        Some(header)
    }

    /// Reads more data into the buffer.
    pub fn fill(&mut self, stream: &TcpStream) -> ReadResult {
        self.bytes.resize(BUFFER_BYTES, 0);
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let Some(count) = receive(stream, &mut self.bytes[self.end..])? else {
            return Ok(ReadStatus::WouldBlock);
        };
        self.end += count;
        Ok(ReadStatus::Read(count))
    }

    /// Moves payload bytes to their destination, from the buffer or the socket. Returns how many.
    pub fn read_into(
        &mut self,
        stream: &TcpStream,
        buffer: &mut RecvBuffer,
        at: usize,
        left: usize,
    ) -> Result<(ReadStatus, usize), String> {
        let have = self.end - self.start;
        if have == 0
            && left >= DIRECT_READ_MIN
            && let Some(memory) = buffer.direct(at, left)
        {
            let count = receive(stream, memory)?;
            let read = |count| (ReadStatus::Read(count), count);
            return Ok(count.map_or((ReadStatus::WouldBlock, 0), read));
        }
        // Elements are not split.
        let usable = if have >= left { left } else { have - have % ELEMENT_BYTES };
        if usable == 0 {
            return Ok((self.fill(stream)?, 0));
        }
        buffer.write(at, &self.bytes[self.start..self.start + usable]);
        self.start += usable;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok((ReadStatus::Read(0), usable))
    }
}

/// Reads without blocking; `None` if there is no data.
fn receive(stream: &TcpStream, into: &mut [u8]) -> Result<Option<usize>, String> {
    loop {
        return match recv(stream, &mut *into, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err("connection closed by the peer".to_owned()),
            Ok((count, _)) => Ok(Some(count)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(std::io::Error::from(error).to_string()),
        };
    }
}
