//! How many elements a collective has, for whom.

use std::borrow::Cow;

use crate::Kind;

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
    /// The elements of a rank; of an exchange, those that come from it.
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

    /// Where the elements begin that an all-to-all sends to a rank, and how many they are.
    pub fn sent_to(&self, rank: usize) -> (usize, usize) {
        match self {
            Self::Exchange { send, .. } => {
                (send.iter().take(rank).sum(), send.get(rank).copied().unwrap_or(0))
            }
            _ => (self.offset(rank), self.of(rank)),
        }
    }

    /// The same, with numbers of its own.
    pub fn into_owned(self) -> Counts<'static> {
        match self {
            Counts::Equal(count) => Counts::Equal(count),
            Counts::Each(counts) => Counts::Each(counts.into_owned().into()),
            Counts::Exchange { send, receive } => Counts::Exchange {
                send: send.into_owned().into(),
                receive: receive.into_owned().into(),
            },
        }
    }

    /// Whether a collective can have such counts on this rank; if not, why.
    pub(crate) fn fit(
        &self,
        kind: Kind,
        rank: usize,
        ranks: usize,
        in_place: bool,
    ) -> Result<(), String> {
        let wrong = |what: &str| Err(what.to_owned());
        let for_all = |counts: &[usize]| match counts.len() == ranks {
            true => Ok(()),
            false => Err(format!("counts for {} ranks, there are {ranks}", counts.len())),
        };
        match self {
            Self::Equal(_) => Ok(()),
            Self::Each(_) if kind.is_whole() => {
                wrong("all ranks have the same number of elements: say it once (Counts::Equal)")
            }
            Self::Each(_) if kind == Kind::AllToAll => wrong(
                "a count for each rank does not say what goes and what comes: say both \
                 (Counts::Exchange)",
            ),
            Self::Each(counts) => for_all(counts),
            Self::Exchange { .. } if kind != Kind::AllToAll => {
                wrong("only an all-to-all has counts for each pair (Counts::Exchange)")
            }
            Self::Exchange { send, receive } => {
                for_all(send)?;
                for_all(receive)?;
                match send.get(rank) == receive.get(rank) {
                    false => wrong("what this rank sends itself is not what it expects of itself"),
                    true if in_place && send != receive => {
                        wrong("in place, as much comes from each rank as goes to it")
                    }
                    true => Ok(()),
                }
            }
        }
    }

    /// Whether all the elements are fewer bytes than addresses go.
    pub(crate) fn addressable(&self, ranks: usize, size: usize) -> Result<(), String> {
        let sum =
            |counts: &[usize]| counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
        let most = match self {
            Self::Equal(count) => count.checked_mul(ranks),
            Self::Each(counts) => sum(counts),
            Self::Exchange { send, receive } => {
                sum(send).and_then(|sent| Some(sent.max(sum(receive)?)))
            }
        };
        match most.and_then(|most| most.checked_mul(size)) {
            Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
            _ => Err("no memory has so many elements".to_owned()),
        }
    }
}
