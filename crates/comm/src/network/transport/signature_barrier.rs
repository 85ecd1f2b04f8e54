//! Comparison of call signatures before any data moves (debug mode).

use std::time::Duration;

use super::NetworkTransport;
use crate::Result;
use crate::transport::{MatchKey, RecvAction, Transport};

/// The timeout of one `progress` call. The transport detects late ranks itself.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);

impl NetworkTransport {
    /// A dissemination barrier that returns when all ranks have started this call. Message headers
    /// carry the signature. A rank that sees another signature stops, so no rank completes the
    /// barrier.
    pub(super) fn signature_barrier(&mut self) -> Result {
        let (rank, ranks) = (self.rank, self.members.len() as u32);
        let mut step = 1;
        while step < ranks {
            let (to, from) = ((rank + step) % ranks, (rank + ranks - step) % ranks);
            let (empty, empty_mut): (*const [u8], *mut [u8]) = (&[], &mut []);
            // SAFETY: empty slices have no bytes to read or write.
            unsafe {
                self.post_receive(from, MatchKey::Collective, empty_mut, RecvAction::Copy)?;
                self.post_send(to, MatchKey::Collective, empty)?;
            }
            let mut done = Vec::new();
            while !self.requests.is_empty() {
                self.progress(PROGRESS_TIMEOUT, &mut done)?;
                done.clear();
            }
            step *= 2;
        }
        Ok(())
    }
}
