//! Errors of collectives and of the bootstrap.

use regatta_events::hang::wording;

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
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum CommError {
    /// The arguments or buffers of a call are invalid. Nothing was sent.
    #[error("{call}: {what}")]
    InvalidCall { call: &'static str, what: String },
    /// A rank died or can no longer be reached.
    #[error("{peer} was lost during {call}: {why}")]
    RankLost { peer: Peer, why: String, call: String },
    /// Ranks issued different calls.
    #[error("{}", wording::mismatch(
        format!("call {sequence} of this communicator"),
        [(ours_by, ours), (theirs_by, theirs)]
    ))]
    CallMismatch {
        sequence: u64,
        ours_by: Peer,
        ours: Box<Signature>,
        theirs_by: Peer,
        theirs: Box<Signature>,
    },
    /// The send count of an all-to-all or a message differs from the receive count.
    #[error(
        "{from} sends {sent} {dtype} to {to}, which expects {expected}; send and receive counts \
         must match"
    )]
    CountMismatch { from: Peer, to: Peer, dtype: DType, sent: u64, expected: u64 },
    /// Ranks did not enter the call in time.
    #[error("{call}: {}", wording::timed_out(*seconds, list(.missing)))]
    Timeout { call: String, seconds: u64, missing: Vec<Peer> },
    /// Both ranks are alive, but messages from one do not reach the other.
    #[error("the link from {from} to {to} failed during {call}: {why}")]
    LinkBroken { from: Peer, to: Peer, why: String, call: String },
    /// A rank aborted the communicator.
    #[error("{by} aborted: {why}")]
    Aborted { by: Peer, why: String },
    /// The configuration is invalid, or the ranks could not be connected.
    #[error("{what}; {hint}")]
    Bootstrap { what: String, hint: String },
    /// An operating-system or library call failed.
    #[error("{what}: {why}")]
    System { what: String, why: String },
}

/// The result of a call.
pub type Result<T = (), E = CommError> = std::result::Result<T, E>;

impl CommError {
    pub(crate) fn invalid_call(call: &'static str, what: impl Into<String>) -> Self {
        Self::InvalidCall { call, what: what.into() }
    }

    pub(crate) fn bootstrap(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Bootstrap { what: what.into(), hint: hint.into() }
    }

    pub(crate) fn system(what: impl Into<String>, why: impl ToString) -> Self {
        Self::System { what: what.into(), why: why.to_string() }
    }

    /// The rank whose failure caused the error, if it is known.
    pub fn failed_rank(&self) -> Option<u32> {
        match self {
            Self::RankLost { peer, .. } | Self::Aborted { by: peer, .. } => Some(peer.rank),
            Self::Timeout { missing, .. } => missing.first().map(|peer| peer.rank),
            _ => None,
        }
    }

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
