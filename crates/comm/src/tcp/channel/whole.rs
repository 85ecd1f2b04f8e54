//! Rank 0 is asked what is wrong with a collective of which this rank knows one part.

use std::time::{Duration, Instant};

use super::TcpTransport;
use super::faults::VERDICT_WITHIN;
use crate::background::{Abort, Over};
use crate::blame::Waits;
use crate::tcp::control::Up;
use crate::tcp::mesh::Hook;
use crate::transport::Transport;
use crate::whole::Whole;
use crate::{CommError, Signature};

/// How often it is looked whether rank 0 has answered.
const LOOK: Duration = Duration::from_millis(5);

/// How much longer a message is waited for than a collective.
const GIVE_WAY: Duration = Duration::from_secs(1);

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
        let mut within = VERDICT_WITHIN;
        let mut reported = match &error {
            CommError::Shape { .. } => return error,
            // This rank knows best.
            CommError::Unmatched { .. } => {
                self.report(&error);
                return self.fail(error);
            }
            // The one who gave up has said why.
            CommError::Aborted { .. } => false,
            CommError::Late { .. } | CommError::Disagree { .. } | CommError::System { .. }
                if self.in_call =>
            {
                self.inquire(&error);
                false
            }
            // Of messages others know nothing; but who should have sent it may wait for a third in a
            // collective, and then those who are in that are about to hear it.
            CommError::Late { .. } => {
                within = GIVE_WAY;
                false
            }
            // Who is gone is gone.
            _ => {
                self.report(&error);
                true
            }
        };
        let mut until = Instant::now() + within;
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
        let late = Some(self.watch.seconds(Instant::now()));
        let (channel, members) = (self.channel, self.members.clone());
        let call = Some(self.calls_done + 1);
        let awaited = match error {
            CommError::Late { missing, .. } => missing.iter().map(|p| self.global_of(p)).collect(),
            _ => Vec::new(),
        };
        self.endpoint.control.tell(Up::Ask { channel, call, awaited, members, late });
    }

    fn report(&self, error: &CommError) {
        let (channel, fault) = (self.channel, self.fault(error));
        self.endpoint.control.tell(Up::Report { channel, fault });
    }
}
