//! The outcome of a rank, as it reports it to the test.

use regatta_comm::CommError;
use serde::{Deserialize, Serialize};

/// The outcome of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankOutcome {
    /// The error variant; `None` on success.
    pub kind: Option<String>,
    /// The global ranks named in the error, with their hosts.
    pub named: Vec<(usize, String)>,
    /// The duration of the failed call.
    pub took_ms: u64,
    /// The error message.
    pub text: String,
    /// The result of joining again.
    pub rejoin: String,
    /// Threads and sockets leaked in the process.
    pub leaks: String,
}

const MARK: &str = "outcome\t";
const REASON: &str = "because of <";

impl RankOutcome {
    /// The outcome of an error in a communicator of these global ranks.
    pub fn of(error: &CommError, members: &[usize]) -> Self {
        let name = |peer: &regatta_comm::error::Peer| {
            let rank = peer.rank as usize;
            let global = || members.get(rank).copied().unwrap_or(usize::MAX);
            (if peer.global { rank } else { global() }, peer.host.clone())
        };
        let (kind, named) = match error {
            CommError::RankLost { peer, .. } => ("RankLost", vec![name(peer)]),
            CommError::CallMismatch { ours_by, theirs_by, .. } => {
                ("CallMismatch", vec![name(theirs_by), name(ours_by)])
            }
            CommError::CountMismatch { from, to, .. } => {
                ("CountMismatch", vec![name(from), name(to)])
            }
            CommError::Timeout { missing, .. } => ("Timeout", missing.iter().map(name).collect()),
            CommError::LinkBroken { from, to, .. } => ("LinkBroken", vec![name(from), name(to)]),
            CommError::Aborted { by, .. } => ("Aborted", vec![name(by)]),
            CommError::InvalidCall { .. } => ("InvalidCall", Vec::new()),
            CommError::Bootstrap { .. } => ("Bootstrap", Vec::new()),
            CommError::System { .. } => ("System", Vec::new()),
        };
        let (kind, text) = (Some(kind.to_owned()), error.to_string());
        Self { kind, named, text, ..Self::default() }
    }

    /// The global ranks named in the error.
    pub fn ranks(&self) -> Vec<usize> {
        self.named.iter().map(|(rank, _)| *rank).collect()
    }

    /// The abort reason for the rank's other communicators.
    pub fn to_abort_reason(&self) -> String {
        format!("{REASON}{}>", serde_json::to_string(&(&self.kind, &self.named)).unwrap())
    }

    /// The root cause, if the error is an abort because of another rank's outcome.
    pub fn root_cause(self) -> Self {
        let reason = self.text.split_once(REASON).and_then(|(_, rest)| rest.split_once('>'));
        match reason.and_then(|(reason, _)| serde_json::from_str(reason).ok()) {
            Some((kind, named)) => Self { kind, named, ..self },
            None => self,
        }
    }

    pub fn write(&self) -> String {
        format!("\n{MARK}{}", serde_json::to_string(self).unwrap())
    }

    /// Parses a line of a rank's output.
    pub fn read(line: &str) -> Option<Self> {
        line.strip_prefix(MARK).map(|outcome| serde_json::from_str(outcome).unwrap())
    }
}
