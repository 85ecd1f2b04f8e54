//! Messages of this rank to itself, in memory: NCCL never connects a rank to itself, so plug-ins may not
//! support it.

use crate::matching::{MatchQueue, MatchResult};
use crate::network::{Report, SharedState, UserBuffer, UserRecv, UserSend, alloc_unexpected};

/// Messages of this rank to itself.
#[derive(Default)]
pub struct Loopback {
    pub queue: MatchQueue<UserBuffer, Vec<u8>>,
    last: u64,
}

impl Loopback {
    /// Delivers a message, or keeps a copy of it until it is received. Without memory for the copy, the
    /// send stays pending.
    pub fn send(&mut self, message: UserSend, shared: &SharedState, report: &mut Report) {
        let UserSend { envelope, request, start } = message;
        let Some(mut bytes) = alloc_unexpected(envelope.length as usize) else { return };
        if !bytes.is_empty() {
            // SAFETY: user memory is valid until the send completes.
            let user = unsafe { std::slice::from_raw_parts(start, bytes.len()) };
            bytes.copy_from_slice(user);
        }
        let comm_id = envelope.key.comm_id;
        report.completed.push((comm_id, request));
        self.last += 1;
        let status = || shared.comm_status(comm_id);
        deliver(comm_id, self.queue.arrive(self.last, envelope, Some(bytes), status), report);
    }

    pub fn receive(&mut self, recv: UserRecv, report: &mut Report) {
        deliver(recv.envelope.key.comm_id, self.queue.post(recv), report);
    }
}

fn deliver(comm_id: u64, result: MatchResult<UserBuffer, Vec<u8>>, report: &mut Report) {
    match result {
        MatchResult::Deliver(mut recv, Some(bytes)) => {
            recv.buffer.write(0, &bytes);
            report.add_moved(comm_id, bytes.len());
            report.completed.push((comm_id, recv.request));
        }
        MatchResult::Discard(_, error) => report.add_error(comm_id, error),
        MatchResult::Deliver(_, None) | MatchResult::Queued => {}
    }
}
