//! Rank 0 is asked what is wrong with a collective of which this rank knows one part.

use std::time::{Duration, Instant};

use super::TcpTransport;
use super::faults::VERDICT_WITHIN;
use crate::background::{Abort, Over};
use crate::blame::Waits;
use crate::tcp::control::{Fault, Up};
use crate::tcp::mesh::Hook;
use crate::transport::Transport;
use crate::whole::Whole;
use crate::{CommError, Signature};

/// How often it is looked whether rank 0 has answered.
const LOOK: Duration = Duration::from_millis(5);

impl Whole for TcpTransport {
    fn begin(&mut self, signature: Signature) -> Result<(), CommError> {
        Transport::begin(self, signature)
    }

    fn end(&mut self) {
        Transport::end(self);
    }

    fn explain(&mut self, error: CommError) -> CommError {
        if let Some(known) = self.failed.clone().or_else(|| Whole::verdict(self)) {
            return self.fail(known);
        }
        let mut reported = match &error {
            CommError::Shape { .. } => return error,
            // This rank knows best.
            CommError::Unmatched { .. } => {
                self.report(&error);
                return self.fail(error);
            }
            // The one who gave up has said why.
            CommError::Aborted { .. } => false,
            CommError::Late { .. } => {
                self.inquire(&error);
                false
            }
            CommError::Disagree { ours, .. } if !ours.kind.is_message() => {
                self.inquire(&error);
                false
            }
            CommError::System { .. } if self.in_call => {
                self.inquire(&error);
                false
            }
            // Who is gone is gone, and of messages others know nothing.
            _ => {
                self.report(&error);
                true
            }
        };
        let mut until = Instant::now() + VERDICT_WITHIN;
        loop {
            if let Some(verdict) = Whole::verdict(self) {
                return self.fail(verdict);
            }
            let cleared = self.endpoint.shared.lock().news.clear.remove(&self.channel);
            let over = Instant::now() >= until;
            if !reported && (cleared || over) {
                // Rank 0 knows no better: all are told what this rank saw.
                self.report(&error);
                (reported, until) = (true, Instant::now() + VERDICT_WITHIN);
            } else if over {
                return self.fail(error);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn verdict(&self) -> Option<CommError> {
        TcpTransport::verdict(self, &self.endpoint.shared.lock())
    }

    fn when_over(&self, call: Abort, waits: Waits) {
        let (channel, members) = (self.channel, self.members.clone());
        self.endpoint.shared.hooks().push(Hook { channel, members, call, waits });
    }

    fn abort(&self) -> Abort {
        Transport::abort(self)
    }

    fn over(&self) -> Over {
        TcpTransport::over(self)
    }
}

impl TcpTransport {
    /// Asks where all are in this call, and those in particular that a part did not hear of.
    fn inquire(&self, error: &CommError) {
        let (awaited, late) = match error {
            CommError::Late { missing, seconds, .. } => {
                (missing.iter().map(|peer| self.global_of(peer)).collect(), *seconds)
            }
            _ => (Vec::new(), self.watch.seconds(Instant::now())),
        };
        // Who is late with a message has nothing to do with all others.
        let all = self.in_call || awaited.is_empty();
        let members = if all { self.members.clone() } else { Vec::new() };
        let (channel, late) = (self.channel, Some(late));
        let call = self.in_call.then_some(self.calls_done + 1);
        self.endpoint.control.tell(Up::Ask { channel, call, awaited, members, late });
    }

    fn report(&self, error: &CommError) {
        let fault = match error {
            // It is of a call of a part, which has another number in the whole.
            CommError::Disagree { ours, .. } if !ours.kind.is_message() => {
                Fault::Aborted { rank: self.me(), why: error.to_string() }
            }
            _ => self.fault(error),
        };
        let channel = self.channel;
        self.endpoint.control.tell(Up::Report { channel, fault });
    }
}
