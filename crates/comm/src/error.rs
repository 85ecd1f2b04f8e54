//! Errors of collectives and of the bootstrap.

use crate::{DType, Signature};

/// A rank and its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The rank in this communicator, or the global rank.
    pub rank: u32,
    /// The host it runs on.
    pub host: String,
    /// Whether `rank` is a global rank, because the peer is not a member of this communicator.
    pub global: bool,
}

impl Peer {
    /// A member of the communicator.
    pub fn new(rank: u32, host: impl Into<String>) -> Self {
        Self { rank, host: host.into(), global: false }
    }

    /// A rank outside the communicator, by its global rank.
    pub fn global(rank: u32, host: impl Into<String>) -> Self {
        Self { rank, host: host.into(), global: true }
    }

    /// Replaces a communicator rank by its entry in `ranks`. A global rank stays as it is.
    fn translate(&mut self, ranks: &[u32]) {
        if self.global {
            self.global = false;
        } else if let Some(rank) = ranks.get(self.rank as usize) {
            self.rank = *rank;
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scope = if self.global { "global " } else { "" };
        write!(f, "{scope}rank {} on {}", self.rank, self.host)
    }
}

/// Why a call failed. After any error but [`CommError::InvalidCall`] the communicator is unusable:
/// drop it and create a new one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// The arguments or buffers of a call are invalid. Nothing was sent.
    #[error("{call}: {what}")]
    InvalidCall {
        /// The collective.
        call: &'static str,
        /// What is invalid.
        what: String,
    },
    /// A rank died or can no longer be reached.
    #[error("{peer} was lost during {call}: {why}")]
    RankLost {
        /// The lost rank.
        peer: Peer,
        /// How it was detected.
        why: String,
        /// The call in progress.
        call: String,
    },
    /// Ranks issued different calls.
    #[error(
        "collective mismatch in call {sequence} of this communicator: {ours_by} called {ours}, \
         {theirs_by} called {theirs}; all ranks must issue the same calls in the same order"
    )]
    CallMismatch {
        /// The sequence number of the call in the communicator.
        sequence: u64,
        /// This rank.
        ours_by: Peer,
        /// Its call.
        ours: Box<Signature>,
        /// The other rank.
        theirs_by: Peer,
        /// Its call.
        theirs: Box<Signature>,
    },
    /// The send count of an all-to-all or a message differs from the receive count.
    #[error(
        "{from} sends {sent} {dtype} to {to}, which expects {expected}; send and receive counts \
         must match"
    )]
    CountMismatch {
        /// The sender.
        from: Peer,
        /// The receiver.
        to: Peer,
        /// The element type.
        dtype: DType,
        /// Elements sent.
        sent: u64,
        /// Elements expected.
        expected: u64,
    },
    /// Ranks did not enter the call in time.
    #[error("{call}: timed out after {seconds} s waiting for {}", list(.missing))]
    Timeout {
        /// The call in progress.
        call: String,
        /// The time waited.
        seconds: u64,
        /// The late ranks.
        missing: Vec<Peer>,
    },
    /// Both ranks are alive, but messages from one do not reach the other.
    #[error("the link from {from} to {to} failed during {call}: {why}")]
    LinkBroken {
        /// The sender.
        from: Peer,
        /// The receiver.
        to: Peer,
        /// How it was detected.
        why: String,
        /// The call in progress.
        call: String,
    },
    /// A rank aborted the communicator.
    #[error("{by} aborted: {why}")]
    Aborted {
        /// The rank that aborted.
        by: Peer,
        /// Its reason.
        why: String,
    },
    /// The ranks could not be connected.
    #[error("bootstrap failed: {what}; {hint}")]
    Bootstrap {
        /// The cause.
        what: String,
        /// The fix.
        hint: String,
    },
    /// An operating-system or library call failed.
    #[error("{what}: {why}")]
    System {
        /// The operation.
        what: String,
        /// The error.
        why: String,
    },
}

impl CommError {
    /// The same error with every communicator rank replaced by its entry in `ranks`.
    pub(crate) fn translate_ranks(mut self, ranks: &[u32]) -> Self {
        match &mut self {
            Self::RankLost { peer, .. } | Self::Aborted { by: peer, .. } => peer.translate(ranks),
            Self::CallMismatch { ours_by: one, theirs_by: other, .. }
            | Self::CountMismatch { from: one, to: other, .. }
            | Self::LinkBroken { from: one, to: other, .. } => {
                one.translate(ranks);
                other.translate(ranks);
            }
            Self::Timeout { missing, .. } => {
                missing.iter_mut().for_each(|peer| peer.translate(ranks));
            }
            Self::InvalidCall { .. } | Self::Bootstrap { .. } | Self::System { .. } => {}
        }
        self
    }
}

fn list(peers: &[Peer]) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<String> = peers.iter().take(SHOWN).map(ToString::to_string).collect();
    if peers.len() > SHOWN {
        names.push(format!("{} more", peers.len() - SHOWN));
    }
    names.join(", ")
}
