//! Comparing what ranks call before any data moves.

use std::time::Duration;

use super::TcpTransport;
use crate::CommError;
use crate::transport::{Landing, Lane, Transport};

/// How long is waited at once; the transport knows itself when it was too long.
const PATIENCE: Duration = Duration::from_secs(1);

impl TcpTransport {
    /// Returns when all ranks have begun this call. Messages tell what call they are of: after so
    /// many rounds each rank has heard, through others, from twice as many, and what one heard of
    /// another call it does not pass on.
    pub(super) fn agree(&mut self) -> Result<(), CommError> {
        let (rank, ranks) = (self.rank, self.members.len() as u32);
        let mut step = 1;
        while step < ranks {
            let (to, from) = ((rank + step) % ranks, (rank + ranks - step) % ranks);
            let (nothing, room): (*const [u8], *mut [u8]) = (&[], &mut []);
            // SAFETY: there is no byte that could be read or written.
            unsafe {
                self.post_receive(from, Lane::Call, room, Landing::Replace)?;
                self.post_send(to, Lane::Call, nothing)?;
            }
            let mut done = Vec::new();
            while !self.open.is_empty() {
                self.progress(PATIENCE, &mut done)?;
                done.clear();
            }
            step *= 2;
        }
        Ok(())
    }
}
