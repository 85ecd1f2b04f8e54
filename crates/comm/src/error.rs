//! What can go wrong between ranks.

use crate::{DType, Signature};

/// A rank and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its number in the communicator.
    pub rank: u32,
    /// Its node.
    pub host: String,
}

/// How the node of a rank is told that is in none of the communicator's places.
const OUTSIDE: &str = ", in the numbers of the world";

impl Peer {
    /// One that is not of the communicator, by its number in the world.
    pub(crate) fn outside(rank: u32, host: &str) -> Self {
        Self { rank, host: format!("{host}{OUTSIDE}") }
    }

    /// Whether it is one.
    pub(crate) fn is_outside(&self) -> bool {
        self.host.ends_with(OUTSIDE)
    }

    /// Takes its number among all ranks, given those of the communicator's ranks.
    fn renumber(&mut self, numbers: &[u32]) {
        if let Some(host) = self.host.strip_suffix(OUTSIDE) {
            self.host = host.to_owned();
        } else if let Some(number) = numbers.get(self.rank as usize) {
            self.rank = *number;
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} on {}", self.rank, self.host)
    }
}

/// Why a collective failed. After any of these but [`CommError::Shape`] the communicator is of no
/// more use: close it, and build another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// The buffers do not fit the call. Nothing was sent.
    #[error("{call}: {what}")]
    Shape {
        /// Which collective.
        call: &'static str,
        /// What does not fit.
        what: String,
    },
    /// A rank is gone.
    #[error("{peer} is gone ({why}) during {call}")]
    Lost {
        /// Which.
        peer: Peer,
        /// How it is known.
        why: String,
        /// What was being done.
        call: String,
    },
    /// Ranks called different things.
    #[error(
        "ranks disagree in call {sequence} of this communicator: {ours_by} called {ours}, {theirs_by} \
         called {theirs}; all ranks must call the same, in the same order"
    )]
    Disagree {
        /// The how-manieth call of the communicator it is.
        sequence: u64,
        /// This rank.
        ours_by: Peer,
        /// What it called.
        ours: Box<Signature>,
        /// The other.
        theirs_by: Peer,
        /// What that called.
        theirs: Box<Signature>,
    },
    /// In an all-to-all or a message, what a rank sends is not what the other expects.
    #[error(
        "{from} sends {sent} {dtype} to {to}, which expects {expected}; both must say the same"
    )]
    Unmatched {
        /// Who sends.
        from: Peer,
        /// To whom.
        to: Peer,
        /// Of what.
        dtype: DType,
        /// How many elements it sends.
        sent: u64,
        /// How many the other expects.
        expected: u64,
    },
    /// Ranks did not come in time.
    #[error("{call}: after {seconds} s nothing came from {}", list(.missing))]
    Late {
        /// What was being done.
        call: String,
        /// How long was waited.
        seconds: u64,
        /// Who did not come.
        missing: Vec<Peer>,
    },
    /// Two ranks live, and what one sends does not come to the other.
    #[error("the path from {from} to {to} is broken ({why}) during {call}")]
    Path {
        /// Who sends.
        from: Peer,
        /// Who should receive.
        to: Peer,
        /// How it is known.
        why: String,
        /// What was being done.
        call: String,
    },
    /// Another rank gave up.
    #[error("{by} gave up: {why}")]
    Aborted {
        /// Who.
        by: Peer,
        /// Why.
        why: String,
    },
    /// Ranks could not be connected.
    #[error("ranks cannot be connected: {what}; {hint}")]
    Join {
        /// What is so.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The system did not do what was asked.
    #[error("{what}: {why}")]
    System {
        /// What was asked.
        what: String,
        /// Its answer.
        why: String,
    },
}

impl CommError {
    /// The same, with ranks named by other numbers than the communicator's.
    pub(crate) fn renumbered(mut self, numbers: &[u32]) -> Self {
        match &mut self {
            Self::Lost { peer, .. } | Self::Aborted { by: peer, .. } => peer.renumber(numbers),
            Self::Disagree { ours_by: one, theirs_by: other, .. }
            | Self::Unmatched { from: one, to: other, .. }
            | Self::Path { from: one, to: other, .. } => {
                one.renumber(numbers);
                other.renumber(numbers);
            }
            Self::Late { missing, .. } => {
                missing.iter_mut().for_each(|peer| peer.renumber(numbers));
            }
            Self::Shape { .. } | Self::Join { .. } | Self::System { .. } => {}
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
