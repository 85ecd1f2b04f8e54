//! The message-size histogram: operations by kind, communicator size and message size.

use std::collections::BTreeMap;

use regatta_events::operation::Operation;

use super::durations::Durations;

/// Most distinct sizes of an operation that are kept apart. Beyond, powers of two are.
pub const MAX_EXACT_SIZES: usize = 64;
/// Most combinations of data type, algorithm and protocol that a row counts apart.
const MAX_VARIANTS: usize = 32;

/// Number of a name: that of [`regatta_events::operation`] for built-in names, else of the name table.
pub type NameCode = u16;

/// Data type, algorithm and protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant {
    /// Data type.
    pub dtype: NameCode,
    /// Algorithm.
    pub algorithm: NameCode,
    /// Protocol.
    pub protocol: NameCode,
}

impl Variant {
    fn of(operation: &Operation) -> Self {
        Self {
            dtype: operation.dtype.code().into(),
            algorithm: operation.algorithm.code().into(),
            protocol: operation.protocol.code().into(),
        }
    }

    fn map(self, rename: &impl Fn(NameCode) -> NameCode) -> Self {
        Self {
            dtype: rename(self.dtype),
            algorithm: rename(self.algorithm),
            protocol: rename(self.protocol),
        }
    }
}

/// Operations of a process, of a communicator, or of one kind and size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Operations.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their durations, in nanoseconds.
    pub time_ns: u64,
}

impl Totals {
    /// Counts an operation.
    #[inline]
    pub fn add(&mut self, operation: &Operation) {
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(operation.bytes);
        self.time_ns = self.time_ns.saturating_add(operation.duration().unwrap_or(0));
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.time_ns = self.time_ns.saturating_add(other.time_ns);
    }
}

/// Operations of one kind and size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// Calls of all ranks.
    pub totals: Totals,
    /// Calls of the communicators' first ranks: each collective has one.
    pub root_calls: u64,
    /// Bytes of the calls whose duration was measured.
    pub timed_bytes: u64,
    /// Longest duration.
    pub max_ns: u64,
    /// Largest message.
    pub max_bytes: u64,
    /// Durations of the calls whose duration was measured.
    pub durations: Durations,
    /// Calls by data type, algorithm and protocol.
    pub variants: Vec<(Variant, u64)>,
}

impl Row {
    /// Counts an operation.
    #[inline]
    fn add(&mut self, operation: &Operation, is_root: bool) {
        self.totals.add(operation);
        self.root_calls += u64::from(is_root);
        self.max_bytes = self.max_bytes.max(operation.bytes);
        if let Some(duration) = operation.duration() {
            self.timed_bytes = self.timed_bytes.saturating_add(operation.bytes);
            self.max_ns = self.max_ns.max(duration);
            self.durations.add(duration);
        }
        self.add_variant(Variant::of(operation), 1);
    }

    #[inline]
    fn add_variant(&mut self, variant: Variant, calls: u64) {
        let known = self.variants.iter_mut().find(|(known, _)| *known == variant);
        if let Some((_, count)) = known {
            *count += calls;
        } else if self.variants.len() < MAX_VARIANTS {
            // The first ones are kept: a real job has fewer.
            self.variants.push((variant, calls));
        }
    }

    fn merge(&mut self, other: &Self, rename: &impl Fn(NameCode) -> NameCode) {
        self.totals.merge(&other.totals);
        self.root_calls += other.root_calls;
        self.timed_bytes = self.timed_bytes.saturating_add(other.timed_bytes);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.max_bytes = self.max_bytes.max(other.max_bytes);
        self.durations.merge(&other.durations);
        for &(variant, calls) in &other.variants {
            self.add_variant(variant.map(rename), calls);
        }
    }
}

/// The sizes of one kind of operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeGroup {
    /// Whether sizes are combined by powers of two.
    pub in_buckets: bool,
    /// Rows by size, or by the power of two that is not above it.
    pub rows: BTreeMap<u64, Row>,
}

impl SizeGroup {
    /// The key of a size.
    pub fn key(&self, bytes: u64) -> u64 {
        if self.in_buckets { power_of_two(bytes) } else { bytes }
    }

    fn row(&mut self, bytes: u64) -> &mut Row {
        if !self.in_buckets && self.rows.len() >= MAX_EXACT_SIZES && !self.rows.contains_key(&bytes)
        {
            self.combine();
        }
        let key = self.key(bytes);
        self.rows.entry(key).or_default()
    }

    /// Combines the sizes by powers of two.
    fn combine(&mut self) {
        self.in_buckets = true;
        for (bytes, row) in std::mem::take(&mut self.rows) {
            self.rows.entry(power_of_two(bytes)).or_default().merge(&row, &|code| code);
        }
    }

    fn merge(&mut self, other: &Self, rename: &impl Fn(NameCode) -> NameCode) {
        if other.in_buckets && !self.in_buckets {
            self.combine();
        }
        for (&bytes, row) in &other.rows {
            self.row(bytes).merge(row, rename);
        }
    }
}

/// The largest power of two that is not above a size; 0 of 0.
fn power_of_two(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

/// Operations by kind, communicator size (0 for point-to-point operations) and message size. Merging is
/// commutative and associative, apart from the order of variants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Sizes by kind and ranks.
    pub groups: BTreeMap<(NameCode, u32), SizeGroup>,
}

impl Histogram {
    /// Counts an operation of a communicator with this number of ranks.
    #[inline]
    pub fn add(&mut self, operation: &Operation, ranks: u32, is_root: bool) {
        let ranks = if operation.kind.is_p2p() { 0 } else { ranks };
        let group = self.groups.entry((operation.kind.code().into(), ranks)).or_default();
        group.row(operation.bytes).add(operation, is_root);
    }

    /// Adds another histogram, whose names have other codes.
    pub fn merge(&mut self, other: &Self, rename: impl Fn(NameCode) -> NameCode) {
        for (&(kind, ranks), group) in &other.groups {
            self.groups.entry((rename(kind), ranks)).or_default().merge(group, &rename);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regatta_events::operation::{
        Algorithm, DataType, Operation, OperationKind, Protocol, Timing,
    };

    use super::*;

    fn operation(kind: OperationKind, bytes: u64, duration: u64) -> Operation {
        Operation {
            communicator: 0,
            index: 0,
            sequence: 0,
            kind,
            dtype: DataType::F32,
            algorithm: Algorithm::Ring,
            protocol: Protocol::Simple,
            channels: 1,
            peer: None,
            count: bytes,
            bytes,
            enqueued: 0,
            timing: Timing::Host,
            start: 0,
            end: duration,
            network: None,
            captured: false,
            completed: true,
        }
    }

    fn histogram(sizes: &[(u64, u64)]) -> Histogram {
        let mut histogram = Histogram::default();
        for &(bytes, duration) in sizes {
            histogram.add(&operation(OperationKind::AllReduce, bytes, duration), 4, bytes % 4 == 0);
        }
        histogram
    }

    proptest! {
        #[test]
        fn merging_is_the_same_as_counting_all(
            sizes in proptest::collection::vec((0u64..100, 1u64..1000), 0..300),
            middle in 0usize..300,
        ) {
            let (first, second) = sizes.split_at(middle.min(sizes.len()));
            let whole = histogram(&sizes);
            let (first, second) = (histogram(first), histogram(second));
            for (one, other) in [(&first, &second), (&second, &first)] {
                let mut merged = one.clone();
                merged.merge(other, |code| code);
                prop_assert_eq!(&merged, &whole);
            }
        }
    }

    #[test]
    fn many_sizes_are_combined_by_powers_of_two() {
        let sizes: Vec<(u64, u64)> = (0..64).map(|bytes| (bytes, 1)).collect();
        let exact = histogram(&sizes);
        let group = exact.groups.values().next().unwrap();
        assert!(!group.in_buckets && group.rows.len() == 64);
        let combined = histogram(&[sizes, vec![(64, 1)]].concat());
        let group = combined.groups.values().next().unwrap();
        let keys: Vec<u64> = group.rows.keys().copied().collect();
        assert!(group.in_buckets);
        assert_eq!(keys, [0, 1, 2, 4, 8, 16, 32, 64]);
        assert_eq!((group.rows[&8].totals.calls, group.rows[&8].max_bytes), (8, 15));
    }

    #[test]
    fn point_to_point_operations_do_not_depend_on_the_communicator() {
        let mut histogram = Histogram::default();
        histogram.add(&operation(OperationKind::Send, 8, 1), 4, false);
        histogram.add(&operation(OperationKind::Send, 8, 1), 8, false);
        assert_eq!(histogram.groups.len(), 1);
    }
}
