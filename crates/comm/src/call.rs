//! A collective as data: what is to be done, with which bytes. What ranks must agree on is its
//! [`Signature`].

use std::borrow::Cow;

use crate::buffer::Buffer;
use crate::{CommError, DType, ReduceOp};

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All get the reduction of all.
    AllReduce,
    /// The root gets the reduction of all.
    Reduce,
    /// All get what the root has.
    Broadcast,
    /// All get the parts of all, in the order of ranks.
    AllGather,
    /// Each gets its part of the reduction of all.
    ReduceScatter,
    /// The root gets the parts of all.
    Gather,
    /// Each gets its part of what the root has.
    Scatter,
    /// Each gets from every rank the part that is for it.
    AllToAll,
    /// Nobody goes on before all are here.
    Barrier,
    /// One sends to another; only the two take part.
    Send,
    /// The other receives.
    Receive,
}

impl Kind {
    /// The collectives in which all take part.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all-to-all",
            Self::Barrier => "barrier",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }

    /// Whether elements are reduced.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether one rank has another role than the others.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }
}

/// How many elements each rank has or gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counts<'a> {
    /// The same number for all.
    Equal(usize),
    /// A number for each rank; all ranks say the same.
    Each(Cow<'a, [usize]>),
    /// All-to-all: what goes to each rank, and what comes from each; every rank has its own.
    Exchange {
        /// To each.
        send: Cow<'a, [usize]>,
        /// From each.
        receive: Cow<'a, [usize]>,
    },
}

impl Counts<'_> {
    /// The elements of a rank.
    pub fn of(&self, rank: usize) -> usize {
        match self {
            Self::Equal(count) => *count,
            Self::Each(counts) => counts.get(rank).copied().unwrap_or(0),
            Self::Exchange { receive, .. } => receive.get(rank).copied().unwrap_or(0),
        }
    }

    /// The elements of all `ranks` ranks together.
    pub fn total(&self, ranks: usize) -> usize {
        match self {
            Self::Equal(count) => count * ranks,
            Self::Each(counts) => counts.iter().sum(),
            Self::Exchange { receive, .. } => receive.iter().sum(),
        }
    }

    /// Where the elements of a rank begin.
    pub fn offset(&self, rank: usize) -> usize {
        match self {
            Self::Equal(count) => count * rank,
            Self::Each(counts) => counts.iter().take(rank).sum(),
            Self::Exchange { receive, .. } => receive.iter().take(rank).sum(),
        }
    }

    /// For how many ranks it is, if it says.
    fn ranks(&self) -> Option<usize> {
        match self {
            Self::Equal(_) => None,
            Self::Each(counts) => Some(counts.len()),
            Self::Exchange { send, receive } if send.len() == receive.len() => Some(send.len()),
            Self::Exchange { .. } => Some(usize::MAX),
        }
    }
}

/// One collective, from one rank's side.
///
/// | kind | counts | input | output |
/// |---|---|---|---|
/// | all-reduce | of the buffer | count | count |
/// | reduce | of the buffer | count | count at the root, else none |
/// | broadcast | of the buffer | none | count; the root's is read |
/// | all-gather | of each rank's part | own part | all parts |
/// | reduce-scatter | of each rank's part | all parts | own part |
/// | gather | of each rank's part | own part | all parts at the root, else none |
/// | scatter | of each rank's part | all parts at the root, else none | own part |
/// | all-to-all | of each rank's part | all parts | all parts |
/// | send | of the buffer | count | none |
/// | receive | of the buffer | none | count |
///
/// In place (`input` is `None`): what would be the input is where it belongs in the output: for
/// all-gather and gather the rank's own part of it, for scatter and reduce-scatter the output has
/// room for all parts, and the rank's own part of it is the result.
#[derive(Debug)]
pub struct Call<'a> {
    /// Which collective.
    pub kind: Kind,
    /// Of what.
    pub dtype: DType,
    /// How elements are reduced, if they are.
    pub op: ReduceOp,
    /// The root; of send and receive, the other rank.
    pub root: u32,
    /// Tells messages between the same two ranks apart.
    pub tag: u32,
    /// How many elements.
    pub counts: Counts<'a>,
    /// What goes in; `None`: it is in the output.
    pub input: Option<&'a [u8]>,
    /// What comes out.
    pub output: &'a mut [u8],
}

/// What ranks must agree on when they call a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature {
    /// Which collective.
    pub kind: Kind,
    /// Of what.
    pub dtype: DType,
    /// How elements are reduced; sum if they are not.
    pub op: ReduceOp,
    /// The root; 0 if there is none.
    pub root: u32,
    /// How many elements, of all ranks together; 0 where every rank has its own number.
    pub count: u64,
    /// A number for the counts of each rank, where they differ.
    pub shape: u64,
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind.name())?;
        if self.kind != Kind::Barrier {
            write!(f, " of {} {}", self.count, self.dtype)?;
        }
        if self.kind.reduces() {
            write!(f, ", {}", self.op)?;
        }
        if self.kind.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        Ok(())
    }
}

impl Call<'_> {
    /// What the others must have called, too.
    pub fn signature(&self, ranks: usize) -> Signature {
        let whole = matches!(self.kind, Kind::AllReduce | Kind::Reduce | Kind::Broadcast);
        let count = match &self.counts {
            Counts::Exchange { .. } => 0,
            counts if whole => counts.of(0) as u64,
            counts => counts.total(ranks) as u64,
        };
        let shape = match &self.counts {
            Counts::Each(counts) => fingerprint(counts),
            _ => 0,
        };
        Signature {
            kind: self.kind,
            dtype: self.dtype,
            op: if self.kind.reduces() { self.op } else { ReduceOp::Sum },
            root: if self.kind.has_root() { self.root } else { 0 },
            count,
            shape,
        }
    }

    /// Whether the buffers have the lengths that the counts ask for.
    pub fn check(&self, rank: u32, ranks: u32) -> Result<(), CommError> {
        let wrong = |what: String| Err(CommError::Shape { call: self.kind.name(), what });
        let peers = matches!(self.kind, Kind::Send | Kind::Receive) || self.kind.has_root();
        if peers && self.root >= ranks {
            return wrong(format!("rank {} does not exist, there are {ranks}", self.root));
        }
        if let Some(given) = self.counts.ranks().filter(|&n| n != ranks as usize) {
            return wrong(format!("counts for {given} ranks, there are {ranks}"));
        }
        let (input, output) = self.lengths(rank as usize, ranks as usize);
        let size = self.dtype.size();
        let given = self.input.map(<[u8]>::len);
        match given {
            Some(given) if given != input * size => {
                wrong(format!("the input has {} elements, {input} are needed", given / size))
            }
            _ if self.output.len() != output * size => wrong(format!(
                "the output has {} elements, {output} are needed",
                self.output.len() / size
            )),
            _ => Ok(()),
        }
    }

    /// The elements of input and output that this rank must have.
    pub fn lengths(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let (part, all) = (self.counts.of(rank), self.counts.total(ranks));
        let root = self.root as usize == rank;
        let placed = self.input.is_none();
        match self.kind {
            Kind::Barrier => (0, 0),
            Kind::AllReduce => (part, part),
            // In place, the others give what they have and get nothing.
            Kind::Reduce if root || placed => (part, part),
            Kind::Reduce => (part, 0),
            Kind::Broadcast | Kind::Receive => (0, part),
            Kind::Send => (part, 0),
            Kind::AllGather => (part, all),
            Kind::ReduceScatter => (all, if placed { all } else { part }),
            Kind::Gather if root => (part, all),
            Kind::Gather => (part, if placed { part } else { 0 }),
            Kind::Scatter if root => (all, if placed { all } else { part }),
            Kind::Scatter => (0, part),
            Kind::AllToAll => match &self.counts {
                Counts::Exchange { send, .. } => (send.iter().sum(), all),
                _ => (all, all),
            },
        }
    }
}

/// FNV-1a over the counts: ranks that differ in one differ in this.
fn fingerprint(counts: &[usize]) -> u64 {
    let bytes = counts.iter().flat_map(|c| (*c as u64).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A collective that owns its buffers.
#[derive(Debug)]
pub struct OwnedCall {
    /// Which collective.
    pub kind: Kind,
    /// Of what.
    pub dtype: DType,
    /// How elements are reduced, if they are.
    pub op: ReduceOp,
    /// The root; of send and receive, the other rank.
    pub root: u32,
    /// Tells messages between the same two ranks apart.
    pub tag: u32,
    /// How many elements.
    pub counts: Counts<'static>,
    /// What goes in; `None`: it is in the output.
    pub input: Option<Buffer>,
    /// What comes out.
    pub output: Buffer,
}

impl OwnedCall {
    /// An all-reduce in place.
    pub fn all_reduce(dtype: DType, op: ReduceOp, buffer: Buffer) -> Self {
        let count = buffer.bytes().len() / dtype.size();
        Self {
            kind: Kind::AllReduce,
            dtype,
            op,
            root: 0,
            tag: 0,
            counts: Counts::Equal(count),
            input: None,
            output: buffer,
        }
    }

    /// The call, with the buffers lent.
    pub fn as_call(&mut self) -> Call<'_> {
        Call {
            kind: self.kind,
            dtype: self.dtype,
            op: self.op,
            root: self.root,
            tag: self.tag,
            counts: self.counts.clone(),
            input: self.input.as_ref().map(Buffer::bytes),
            output: self.output.bytes_mut(),
        }
    }
}
