//! A collective as data: what is to be done, with which bytes. What ranks must agree on is its
//! [`Signature`].

use crate::counts::Counts;
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

    /// Whether all ranks have the same number of elements, be it of all or of one other rank.
    pub fn is_whole(self) -> bool {
        let one = matches!(self, Self::Broadcast | Self::Send | Self::Receive);
        one || matches!(self, Self::AllReduce | Self::Reduce)
    }

    /// Whether one rank has another role than the others.
    pub fn has_root(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Whether it is between two ranks only.
    pub fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Receive)
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
/// | all-to-all | of each part | a part for each rank | a part from each rank |
/// | send | of the buffer | count | none |
/// | receive | of the buffer | none | count |
///
/// In place (`input` is `None`): what would be the input is where it belongs in the output: for
/// all-gather and gather the rank's own part of it, for scatter and reduce-scatter the output has
/// room for all parts, and the rank's own part of it is the result. An all-to-all in place gets from
/// each rank as much as it sends there.
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

/// The shape where every rank has counts of its own, which say nothing of those of others.
const BY_PAIR: u64 = 1;

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind.name())?;
        match self.kind {
            Kind::Barrier => {}
            Kind::AllToAll if self.shape == BY_PAIR => {
                write!(f, " of {}, with counts for each pair", self.dtype)?;
            }
            _ => write!(f, " of {} {}", self.count, self.dtype)?,
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
        let count = match &self.counts {
            Counts::Exchange { .. } => 0,
            counts if self.kind.is_whole() => counts.of(0) as u64,
            counts => counts.total(ranks) as u64,
        };
        let shape = match &self.counts {
            Counts::Equal(_) => 0,
            Counts::Each(counts) => fingerprint(counts),
            Counts::Exchange { .. } => BY_PAIR,
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

    /// Whether its counts make sense, and the buffers have the lengths that they ask for.
    pub fn check(&self, rank: u32, ranks: u32) -> Result<(), CommError> {
        self.check_lengths(rank, ranks, self.input.map(<[u8]>::len), self.output.len())
    }

    /// The same for buffers of so many bytes that lie elsewhere.
    pub(crate) fn check_lengths(
        &self,
        rank: u32,
        ranks: u32,
        given: Option<usize>,
        room: usize,
    ) -> Result<(), CommError> {
        let wrong = |what: String| Err(CommError::Shape { call: self.kind.name(), what });
        let peers = matches!(self.kind, Kind::Send | Kind::Receive) || self.kind.has_root();
        if peers && self.root >= ranks {
            return wrong(format!("rank {} does not exist, there are {ranks}", self.root));
        }
        let size = self.dtype.size();
        let fit = self.counts.fit(self.kind, rank as usize, ranks as usize, given.is_none());
        if let Err(what) = fit.and_then(|()| self.counts.addressable(ranks as usize, size)) {
            return wrong(what);
        }
        let (input, output) = self.lengths(rank as usize, ranks as usize);
        match given {
            Some(given) if given != input * size => {
                wrong(format!("the input has {} elements, {input} are needed", given / size))
            }
            _ if room != output * size => {
                wrong(format!("the output has {} elements, {output} are needed", room / size))
            }
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
            Kind::Send => (part, if placed { part } else { 0 }),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: Kind, counts: Counts<'static>) -> Call<'static> {
        let (dtype, op) = (DType::F32, ReduceOp::Sum);
        Call { kind, dtype, op, root: 1, tag: 0, counts, input: Some(&[]), output: &mut [] }
    }

    #[test]
    fn signatures_are_the_same_where_ranks_agree() {
        let exchange = |send: &[usize]| {
            let counts = Counts::Exchange { send: send.to_vec().into(), receive: vec![].into() };
            call(Kind::AllToAll, counts).signature(2)
        };
        assert_eq!(exchange(&[1, 2]), exchange(&[0, 7]));
        assert_eq!(exchange(&[]).to_string(), "all-to-all of f32, with counts for each pair");
        let even = call(Kind::AllToAll, Counts::Equal(0)).signature(2);
        assert_ne!(exchange(&[]), even);
        // A message is as long as it is, however many ranks there are.
        let message = call(Kind::Send, Counts::Equal(3)).signature(5);
        assert_eq!(message.to_string(), "send of 3 f32");
    }

    #[test]
    fn counts_that_make_no_sense_are_refused() {
        let error = |kind, counts| call(kind, counts).check(0, 2).unwrap_err().to_string();
        let each = || Counts::Each(vec![0, 0].into());
        let exchange = |send: &[usize], receive: &[usize]| Counts::Exchange {
            send: send.to_vec().into(),
            receive: receive.to_vec().into(),
        };
        assert!(error(Kind::AllToAll, each()).contains("Counts::Exchange"));
        assert!(error(Kind::AllReduce, each()).contains("Counts::Equal"));
        assert!(error(Kind::AllGather, exchange(&[], &[])).contains("only an all-to-all"));
        assert!(error(Kind::AllToAll, exchange(&[1, 0], &[2, 0])).contains("itself"));
        assert!(error(Kind::AllToAll, exchange(&[1], &[1, 0])).contains("there are 2"));
        assert!(error(Kind::AllGather, Counts::Each(vec![1].into())).contains("for 1 ranks"));
        let huge = Counts::Each(vec![usize::MAX, 5].into());
        assert!(error(Kind::AllGather, huge).contains("no memory has"));
        let placed = Call { input: None, ..call(Kind::AllToAll, exchange(&[0, 1], &[0, 2])) };
        assert!(placed.check(0, 2).unwrap_err().to_string().contains("in place"));
    }
}
