//! A set of logical CPUs (hardware threads in the kernel's numbering) in three notations: the
//! kernel's list (`1-7,9`), the hex mask of Slurm and taskset (`fe`), and the kernel's mask of
//! comma-separated 32-bit words (`00000000,000000fe`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Exclusive upper bound of CPU numbers, eight times the limit of Linux. It bounds the memory that
/// a malformed list can allocate.
pub const MAX_CPUS: usize = 65_536;

/// A set of logical CPU numbers. Also used for NUMA node sets, which have the same notation.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet {
    /// 64 CPUs per word. No trailing zero words, because the derived equality must be set equality.
    words: Vec<u64>,
}

/// Parse error of a CPU set. `at` is a byte offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum CpuSetError {
    /// Not a number.
    #[error("expected a CPU number at byte {at} of {text:?}")]
    NotANumber { text: String, at: usize },
    /// A range with its bounds reversed.
    #[error("the bounds of the range at byte {at} of {text:?} are reversed")]
    ReversedRange { text: String, at: usize },
    /// A CPU number of at least [`MAX_CPUS`].
    #[error("the CPU number at byte {at} of {text:?} exceeds {}", MAX_CPUS - 1)]
    TooLarge { text: String, at: usize },
    /// Not a hex digit.
    #[error("byte {at} of the mask {text:?} is not a hex digit")]
    NotHex { text: String, at: usize },
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The CPUs `low..=high`, truncated at [`MAX_CPUS`].
    pub fn range(low: usize, high: usize) -> Self {
        (low..=high.min(MAX_CPUS - 1)).collect()
    }

    /// Adds a CPU. Numbers from [`MAX_CPUS`] are ignored.
    pub fn insert(&mut self, cpu: usize) {
        if cpu >= MAX_CPUS {
            return;
        }
        let word = cpu / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % 64);
    }

    /// Removes a CPU.
    pub fn remove(&mut self, cpu: usize) {
        if let Some(word) = self.words.get_mut(cpu / 64) {
            *word &= !(1 << (cpu % 64));
        }
        self.trim();
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|w| w & (1 << (cpu % 64)) != 0)
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    i * 64 + bit
                })
            })
        })
    }

    /// The CPUs in either set.
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) =
            if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        for (w, o) in words.iter_mut().zip(&short.words) {
            *w |= o;
        }
        Self { words }
    }

    /// The CPUs in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        Self::trimmed(self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect())
    }

    /// The CPUs of this set that are not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        let other_words = other.words.iter().copied().chain(std::iter::repeat(0));
        Self::trimmed(self.words.iter().zip(other_words).map(|(a, b)| a & !b).collect())
    }

    /// Whether every CPU of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Whether the two sets share a CPU.
    pub fn intersects(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// The maximal ranges of consecutive CPUs, as `(first, last)`.
    pub fn ranges(&self) -> Vec<(usize, usize)> {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        ranges
    }

    /// The hex mask without prefix or leading zeros, as `taskset -p` prints it: `{1..7}` is `fe`.
    pub fn to_mask(&self) -> String {
        let mut words = self.words.iter().rev();
        let mut text = words.next().map_or_else(|| "0".to_owned(), |w| format!("{w:x}"));
        text.extend(words.map(|word| format!("{word:016x}")));
        text
    }

    /// Parses a hex mask: `fe`, `0xfe`, or the kernel's comma-separated 32-bit words.
    pub fn from_mask(text: &str) -> Result<Self, CpuSetError> {
        let trimmed = text.trim();
        let digits = trimmed.strip_prefix("0x").unwrap_or(trimmed);
        let start = text.trim_end().len() - digits.len();
        let mut set = Self::new();
        let mut bit = 0;
        for (at, c) in digits.char_indices().rev().map(|(at, c)| (start + at, c)) {
            if c == ',' {
                continue;
            }
            let not_hex = || CpuSetError::NotHex { text: text.to_owned(), at };
            let digit = c.to_digit(16).ok_or_else(not_hex)?;
            for offset in (0..4).filter(|o| digit & (1 << o) != 0) {
                if bit + offset >= MAX_CPUS {
                    return Err(CpuSetError::TooLarge { text: text.to_owned(), at });
                }
                set.insert(bit + offset);
            }
            bit += 4;
        }
        if bit == 0 {
            return Err(CpuSetError::NotHex { text: text.to_owned(), at: 0 });
        }
        Ok(set)
    }

    fn trimmed(words: Vec<u64>) -> Self {
        let mut set = Self { words };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::new();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Parses the kernel's list format. Surrounding white space is allowed; empty input is the
    /// empty set.
    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let body = text.trim();
        let mut set = Self::new();
        if body.is_empty() {
            return Ok(set);
        }
        let mut at = text.len() - text.trim_start().len();
        for item in body.split(',') {
            let (low, high) = item.split_once('-').unwrap_or((item, item));
            let first = parse_cpu(text, low, at)?;
            let last = parse_cpu(text, high, at + low.len() + 1)?;
            if first > last {
                return Err(CpuSetError::ReversedRange { text: text.to_owned(), at });
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
            at += item.len() + 1;
        }
        Ok(set)
    }
}

fn parse_cpu(text: &str, digits: &str, at: usize) -> Result<usize, CpuSetError> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(CpuSetError::NotANumber { text: text.to_owned(), at });
    }
    match digits.parse::<usize>() {
        Ok(n) if n < MAX_CPUS => Ok(n),
        _ => Err(CpuSetError::TooLarge { text: text.to_owned(), at }),
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |(first, last)| {
            if first == last { format!("{first}") } else { format!("{first}-{last}") }
        };
        f.pad(&self.ranges().into_iter().map(range).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn masks_match_the_lumi_user_guide() {
        assert_eq!(set("49-55").to_mask(), "fe000000000000");
        assert_eq!(set("57-63").to_mask(), "fe00000000000000");
        assert_eq!(set("64-71").to_mask(), "ff0000000000000000");
        assert_eq!(CpuSet::new().to_mask(), "0");
    }

    #[test]
    fn parse_errors_have_a_byte_offset() {
        let error = "1,x".parse::<CpuSet>().unwrap_err().to_string();
        assert_eq!(error, "expected a CPU number at byte 2 of \"1,x\"");
        assert!(matches!("5-3".parse::<CpuSet>(), Err(CpuSetError::ReversedRange { at: 0, .. })));
        assert!(matches!("0-65536".parse::<CpuSet>(), Err(CpuSetError::TooLarge { at: 2, .. })));
        assert!(matches!("1,,2".parse::<CpuSet>(), Err(CpuSetError::NotANumber { at: 2, .. })));
        assert!(matches!(CpuSet::from_mask("fg"), Err(CpuSetError::NotHex { at: 1, .. })));
        assert!(matches!(CpuSet::from_mask(" 0xfg\n"), Err(CpuSetError::NotHex { at: 4, .. })));
    }

    #[test]
    fn kernel_masks_with_commas_are_parsed() {
        assert_eq!(CpuSet::from_mask("00000001,00000003").unwrap(), set("0-1,32"));
        assert_eq!(CpuSet::from_mask("0xfe").unwrap(), set("1-7"));
    }

    proptest! {
        #[test]
        fn list_and_mask_round_trip(cpus in proptest::collection::vec(0usize..700, 0..60)) {
            let s: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(&s.to_string().parse::<CpuSet>().unwrap(), &s);
            prop_assert_eq!(&CpuSet::from_mask(&s.to_mask()).unwrap(), &s);
        }

        #[test]
        fn set_algebra_agrees_with_btreeset(
            a in proptest::collection::btree_set(0usize..300, 0..40),
            b in proptest::collection::btree_set(0usize..300, 0..40),
        ) {
            let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            let all = |s: &CpuSet| s.iter().collect::<Vec<_>>();
            prop_assert_eq!(all(&x.union(&y)), a.union(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(all(&x.intersection(&y)), a.intersection(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(all(&x.difference(&y)), a.difference(&b).copied().collect::<Vec<_>>());
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
            prop_assert_eq!(x.len(), a.len());
        }

        #[test]
        fn parsing_never_panics(text in "\\PC*") {
            let _ = text.parse::<CpuSet>();
            let _ = CpuSet::from_mask(&text);
        }
    }
}
