//! The chunks of a large message, in either direction: posted in order, several in flight.

use super::connection::{Connection, Region, Request, RequestMemory};
use super::table::NetError;
use crate::matching::Envelope;

/// The state of the chunks of a message.
pub struct Chunks {
    envelope: Envelope,
    /// The registration of the user memory.
    region: Option<Region>,
    /// Bytes that are posted.
    pub at: usize,
    /// Chunks in flight.
    in_flight: usize,
    /// Those of them that are in user memory.
    direct: usize,
}

impl Chunks {
    pub fn new(envelope: Envelope) -> Self {
        Self { envelope, region: None, at: 0, in_flight: 0, direct: 0 }
    }

    pub fn comm_id(&self) -> u64 {
        self.envelope.key.comm_id
    }

    pub fn length(&self) -> usize {
        self.envelope.length as usize
    }

    /// Whether all chunks are posted.
    pub fn is_posted(&self) -> bool {
        self.at == self.length()
    }

    /// The next chunk in the user memory of the message, which is registered as a whole.
    pub fn user_memory(
        &mut self,
        all: *mut [u8],
        connection: &mut Connection,
    ) -> Result<RequestMemory, NetError> {
        let region = match self.region {
            Some(region) => region,
            None => *self.region.insert(connection.register(all)?),
        };
        let start = all.cast::<u8>().wrapping_add(self.at);
        Ok(RequestMemory::User { start, region, comm_id: self.comm_id() })
    }

    /// Posts the next chunk, `bytes` of the message. Returns false if the plug-in cannot take it now.
    ///
    /// # Safety
    /// As for [`Connection::post`].
    pub unsafe fn post(
        &mut self,
        request: Request,
        bytes: usize,
        connection: &mut Connection,
    ) -> Result<bool, NetError> {
        let is_direct = request.is_direct();
        // SAFETY: by the caller's contract.
        let posted = unsafe { connection.post(request) }?;
        if posted {
            self.at += bytes;
            self.in_flight += 1;
            self.direct += usize::from(is_direct);
        }
        Ok(posted)
    }

    /// A chunk has completed.
    pub fn completed(&mut self, chunk: &Request) {
        self.in_flight -= 1;
        self.direct -= usize::from(chunk.is_direct());
    }

    /// Ends the registration once the user memory of the message is no longer used.
    pub fn release_memory(
        &mut self,
        is_cancelled: bool,
        connection: &mut Connection,
    ) -> Result<(), NetError> {
        let is_unused = self.direct == 0 && (is_cancelled || self.is_done());
        match self.region.take_if(|_| is_unused) {
            Some(region) => connection.deregister(region),
            None => Ok(()),
        }
    }

    pub fn is_done(&self) -> bool {
        self.is_posted() && self.in_flight == 0
    }
}
