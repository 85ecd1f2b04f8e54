//! Element counts of a collective.

use std::borrow::Cow;

use crate::CallKind;

/// The element count of each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counts<'a> {
    /// The same count for all ranks.
    Equal(usize),
    /// A count per rank, the same list on all ranks.
    PerRank(Cow<'a, [usize]>),
    /// All-to-all: counts per pair of ranks. Each rank knows only its own.
    PerPair {
        /// To each rank.
        send: Cow<'a, [usize]>,
        /// From each rank.
        receive: Cow<'a, [usize]>,
    },
}

impl Counts<'_> {
    /// The count of a rank; for per-pair counts, the number received from it.
    #[inline]
    pub fn of(&self, rank: usize) -> usize {
        match self {
            Self::Equal(count) => *count,
            Self::PerRank(counts) | Self::PerPair { receive: counts, .. } => {
                counts.get(rank).copied().unwrap_or(0)
            }
        }
    }

    /// The total count of all ranks.
    #[inline]
    pub fn total(&self, ranks: usize) -> usize {
        self.offset(ranks)
    }

    /// The offset of a rank's elements.
    #[inline]
    pub fn offset(&self, rank: usize) -> usize {
        match self {
            Self::Equal(count) => count * rank,
            Self::PerRank(counts) | Self::PerPair { receive: counts, .. } => {
                counts.iter().take(rank).sum()
            }
        }
    }

    /// The offset and count of the elements that an all-to-all sends to a rank.
    pub fn send_block(&self, rank: usize) -> (usize, usize) {
        match self {
            Self::PerPair { send, .. } => {
                (send.iter().take(rank).sum(), send.get(rank).copied().unwrap_or(0))
            }
            _ => (self.offset(rank), self.of(rank)),
        }
    }

    /// The counts as owned values.
    pub fn into_owned(self) -> Counts<'static> {
        match self {
            Counts::Equal(count) => Counts::Equal(count),
            Counts::PerRank(counts) => Counts::PerRank(counts.into_owned().into()),
            Counts::PerPair { send, receive } => Counts::PerPair {
                send: send.into_owned().into(),
                receive: receive.into_owned().into(),
            },
        }
    }

    /// Checks that a collective may have these counts on this rank.
    #[inline]
    pub(crate) fn validate(
        &self,
        kind: CallKind,
        rank: usize,
        ranks: usize,
        in_place: bool,
    ) -> Result<(), String> {
        let lists: &[&[usize]] = match self {
            Self::Equal(_) => return Ok(()),
            Self::PerRank(counts) => &[counts],
            Self::PerPair { send, receive } => &[send, receive],
        };
        let wrong_length = lists.iter().map(|counts| counts.len()).find(|len| *len != ranks);
        let what = match (self, wrong_length) {
            (Self::PerRank(_), _) if kind.has_uniform_count() => {
                "all ranks have the same count: use Counts::Equal"
            }
            (Self::PerRank(_), _) if kind == CallKind::AllToAll => {
                "an all-to-all needs send and receive counts: use Counts::PerPair"
            }
            (Self::PerPair { .. }, _) if kind != CallKind::AllToAll => {
                "only an all-to-all has per-pair counts (Counts::PerPair)"
            }
            (_, Some(len)) => return Err(format!("{len} counts are given for {ranks} ranks")),
            (Self::PerPair { send, receive }, _) if send.get(rank) != receive.get(rank) => {
                "the counts that this rank sends to and receives from itself differ"
            }
            (Self::PerPair { send, receive }, _) if in_place && send != receive => {
                "an in-place all-to-all needs equal send and receive counts"
            }
            _ => return Ok(()),
        };
        Err(what.to_owned())
    }

    /// Checks that the total size in bytes does not overflow.
    #[inline]
    pub(crate) fn check_size(&self, ranks: usize, size: usize) -> Result<(), String> {
        let sum = |counts: &[usize]| counts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        let total = match self {
            Self::Equal(count) => count.checked_mul(ranks),
            Self::PerRank(counts) => sum(counts),
            Self::PerPair { send, receive } => {
                sum(send).and_then(|sent| Some(sent.max(sum(receive)?)))
            }
        };
        match total.and_then(|total| total.checked_mul(size)) {
            Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
            _ => Err("the counts exceed the address space".to_owned()),
        }
    }
}
