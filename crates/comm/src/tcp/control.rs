//! What ranks tell rank 0 and it tells them, beside the collectives: who is where, who is gone, who
//! called what.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::fabric::Wish;
use crate::{DType, Kind, ReduceOp, Signature};

/// A rank and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// Its number on its node.
    pub local_rank: u32,
    /// The name of its node.
    pub host: String,
    /// What tells its node from others, whatever they are called.
    pub node: u64,
    /// Where it listens; none, of rank 0: where the others reach it.
    pub ips: Vec<IpAddr>,
    /// The port.
    pub port: u16,
    /// Whether it compares what is called before data moves.
    pub debug: bool,
    /// What it wants of libfabric.
    pub fabric: Wish,
}

/// The first words on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// To rank 0: a rank joins.
    Join {
        /// How many ranks it believes in.
        world: u32,
        /// Who it is.
        member: Member,
    },
    /// To any rank: messages come here.
    Data {
        /// From whom.
        rank: u32,
        /// Which of its connections it is.
        index: u8,
    },
}

/// A rank has not more connections to another.
pub const MOST_CONNECTIONS: u8 = 16;

/// Stands before the first messages: the listener has taken the connection in.
pub const TAKEN: &[u8] = b"taken";

/// The same, from one who sends over another connection already: that one is to be used both ways.
pub const TAKEN_TOO: &[u8] = b"taken, too";

/// Why a communicator is over, by the numbers of the whole world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// A rank is gone.
    Lost {
        /// Which.
        rank: u32,
        /// How it is known.
        why: String,
    },
    /// Ranks called different things.
    Disagree {
        /// In which call.
        sequence: u64,
        /// A rank, and what it called: most did so.
        most: (u32, Called),
        /// A rank that called something else.
        odd: (u32, Called),
    },
    /// Ranks did not come.
    Late {
        /// To which call.
        sequence: u64,
        /// How long was waited.
        seconds: u64,
        /// Who.
        missing: Vec<u32>,
    },
    /// Two ranks live, and what one sends does not come to the other.
    Path {
        /// Who sends.
        from: u32,
        /// Who should receive.
        to: u32,
        /// How it is known.
        why: String,
    },
    /// A rank gave up.
    Aborted {
        /// Which.
        rank: u32,
        /// Why.
        why: String,
    },
}

impl Fault {
    /// Whether a communicator of these ranks is over by it, if it was not said of which it is.
    pub fn concerns(&self, members: &[u32]) -> bool {
        match self {
            // Without rank 0 nobody says what is wrong any more.
            Self::Lost { rank, .. } => *rank == 0 || members.contains(rank),
            Self::Path { from, to, .. } => members.contains(from) && members.contains(to),
            _ => true,
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost { rank, why } => write!(f, "rank {rank} of the world is gone ({why})"),
            Self::Disagree { sequence, most, odd } => {
                let (ours, theirs) = (Signature::from(most.1), Signature::from(odd.1));
                write!(f, "in call {sequence} rank {} of the world called {ours}, ", most.0)?;
                write!(f, "rank {} called {theirs}", odd.0)
            }
            Self::Late { seconds, missing, .. } => {
                write!(f, "after {seconds} s nothing came from ranks {missing:?} of the world")
            }
            Self::Path { from, to, why } => {
                write!(f, "the path from rank {from} to rank {to} of the world is broken ({why})")
            }
            Self::Aborted { rank, why } => write!(f, "rank {rank} of the world gave up: {why}"),
        }
    }
}

/// The messages of a rank in its collective of this number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// How many were sent to whom.
    pub sent: Vec<(u32, u64)>,
    /// How many came from whom.
    pub came: Vec<(u32, u64)>,
    /// Of whom more are awaited.
    pub awaited: Vec<u32>,
}

/// A rank has closed a communicator, after so many collectives and messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Which communicator.
    pub channel: u64,
    /// How many collectives it did to the end.
    pub calls: u64,
    /// To whom it sent how many messages.
    pub messages: Vec<(u32, u64)>,
}

/// What a rank tells rank 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// Its connection with another broke.
    Saw {
        /// In which communicator it matters.
        channel: u64,
        /// With whom.
        rank: u32,
        /// Whether it is one on which this rank sends.
        sends: bool,
        /// How.
        why: String,
    },
    /// It waits, and wants to know whether that is in vain.
    Ask {
        /// In which communicator.
        channel: u64,
        /// In which collective; `None`: for a message.
        call: Option<u64>,
        /// Whom it waits for.
        awaited: Vec<u32>,
        /// If it is late in a collective, all who take part.
        members: Vec<u32>,
        /// How long it has waited, if that is too long: all are asked where they are.
        late: Option<u64>,
    },
    /// Answers [`Down::Where`].
    Answer {
        /// Which question.
        inquiry: u64,
        /// How many collectives it began.
        calls: u64,
        /// What it called, of late: the how-manieth call, and what.
        called: Vec<(u64, Called)>,
        /// Its messages in the last of these.
        traffic: Traffic,
        /// Whom it waits for, in any communicator, and how many milliseconds already.
        waits: Vec<(u32, u64)>,
    },
    /// A communicator is over.
    Report {
        /// Which.
        channel: u64,
        /// Why.
        fault: Fault,
    },
    /// It has closed a communicator.
    Left(Left),
    /// It ends, and all is well.
    Bye,
}

/// What rank 0 tells a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// All are here.
    Table {
        /// Who.
        members: Vec<Member>,
        /// By which algorithms all do their collectives, as a document.
        algorithms: String,
    },
    /// It comes to nothing.
    Refused {
        /// What is so.
        what: String,
        /// What to do.
        hint: String,
    },
    /// Where are you in this communicator?
    Where {
        /// Which question.
        inquiry: u64,
        /// Which communicator.
        channel: u64,
    },
    /// A communicator, or all in which a rank is that was lost, is over.
    Verdict {
        /// Which; `None`: wherever it matters.
        channel: Option<u64>,
        /// Why.
        fault: Fault,
    },
    /// All that were asked are here and agree.
    Clear {
        /// In which communicator.
        channel: u64,
    },
    /// A rank has closed a communicator.
    Left {
        /// Which rank.
        rank: u32,
        /// What it says.
        left: Left,
    },
    /// Rank 0 ends, and all is well.
    Bye,
}

/// A signature that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    kind: u8,
    dtype: u8,
    op: u8,
    root: u32,
    count: u64,
    shape: u64,
}

/// What a signature may be of beside the collectives.
const MESSAGES: [Kind; 2] = [Kind::Send, Kind::Receive];

impl From<Signature> for Called {
    fn from(of: Signature) -> Self {
        let place = |found: Option<usize>| found.unwrap_or(0) as u8;
        Self {
            kind: place(Kind::ALL.iter().chain(&MESSAGES).position(|k| *k == of.kind)),
            dtype: place(DType::ALL.iter().position(|d| *d == of.dtype)),
            op: place(ReduceOp::ALL.iter().position(|o| *o == of.op)),
            root: of.root,
            count: of.count,
            shape: of.shape,
        }
    }
}

impl From<Called> for Signature {
    fn from(of: Called) -> Self {
        let mut kinds = Kind::ALL.iter().chain(&MESSAGES);
        Self {
            kind: kinds.nth(of.kind as usize).copied().unwrap_or(Kind::Barrier),
            dtype: DType::ALL.get(of.dtype as usize).copied().unwrap_or(DType::U8),
            op: ReduceOp::ALL.get(of.op as usize).copied().unwrap_or(ReduceOp::Sum),
            root: of.root,
            count: of.count,
            shape: of.shape,
        }
    }
}

impl Called {
    /// Whether it is no collective, but one side of a message.
    pub fn is_message(&self) -> bool {
        usize::from(self.kind) >= Kind::ALL.len()
    }

    /// As one number.
    pub fn number(&self) -> u32 {
        let small = [self.kind, self.dtype, self.op];
        let numbers = [self.root.into(), self.count, self.shape];
        let bytes = small.into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes));
        let hash = fingerprint(bytes);
        (hash ^ (hash >> 32)) as u32
    }
}

/// Bytes as one number, by FNV-1a: others have another.
pub fn fingerprint(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// As bytes. What cannot fail does not.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap_or_default()
}

/// Of bytes; `None`: it is none of ours.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(bytes).ok()
}
