//! Size, count and bandwidth, as nccl-tests means them.
//!
//! `size` is the largest buffer of a rank, `count` what a rank gives to the call. Where a rank has
//! a part of the whole (all-gather, reduce-scatter, all-to-all, gather, scatter) the whole is cut
//! into as many parts as there are ranks, each a multiple of 16 bytes, and `count` is one part.

use regatta_model::Operation;

/// Bytes that a part is a multiple of.
const PART_ALIGNMENT: u64 = 16;

/// Bandwidths in GB/s (10⁹ bytes a second).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// Of the algorithm: size over time.
    pub algbw: f64,
    /// Of the links: what they carry, whatever the number of ranks.
    pub busbw: f64,
}

/// The buffers of one call at one rank, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// The count given to the call.
    pub count: u64,
    /// Elements of the send buffer.
    pub send: u64,
    /// Elements of the receive buffer.
    pub receive: u64,
}

impl Counts {
    /// What the `size` column shows: the larger buffer, in bytes.
    pub fn size_bytes(self, element_bytes: u64) -> u64 {
        self.send.max(self.receive).saturating_mul(element_bytes)
    }
}

/// Whether a rank has a part of the whole as its send or receive buffer.
pub fn is_parted(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::AllGather
            | Operation::ReduceScatter
            | Operation::AllToAll
            | Operation::AllToAllV
            | Operation::Gather
            | Operation::Scatter
            | Operation::Hypercube
    )
}

/// What the bus carries of each byte of the size. `None` for what is not known, and for no rank.
pub fn bus_factor(operation: &Operation, ranks: u32) -> Option<f64> {
    let n = f64::from(ranks);
    if ranks == 0 {
        return None;
    }
    match operation {
        Operation::AllReduce => Some(2.0 * (n - 1.0) / n),
        Operation::AllGather
        | Operation::ReduceScatter
        | Operation::AllToAll
        | Operation::AllToAllV
        | Operation::Gather
        | Operation::Scatter => Some((n - 1.0) / n),
        // Its algbw leaves the rank's own part out already.
        Operation::Hypercube => Some(1.0),
        Operation::Broadcast | Operation::Reduce | Operation::SendRecv => Some(1.0),
        Operation::Latency | Operation::Bandwidth | Operation::BiBandwidth => Some(1.0),
        Operation::Barrier | Operation::Unknown | Operation::Other(_) => None,
    }
}

/// The bandwidths of a call. `None` where the operation has none or no time passed.
pub fn bandwidth(
    operation: &Operation,
    ranks: u32,
    size_bytes: u64,
    time_us: f64,
) -> Option<Bandwidth> {
    let factor = bus_factor(operation, ranks)?;
    if time_us.is_nan() || time_us <= 0.0 {
        return None;
    }
    let n = f64::from(ranks);
    let counted = match operation {
        Operation::Hypercube => size_bytes as f64 * (n - 1.0) / n,
        _ => size_bytes as f64,
    };
    // Bytes in a microsecond are a thousandth of a GB/s.
    let algbw = counted / time_us / 1e3;
    Some(Bandwidth { algbw, busbw: algbw * factor })
}

/// The buffers of a call for which a user asked for `wanted_bytes`: rounded down to what divides.
pub fn counts(operation: &Operation, ranks: u32, element_bytes: u64, wanted_bytes: u64) -> Counts {
    let (ranks, element_bytes) = (u64::from(ranks.max(1)), element_bytes.max(1));
    let whole = wanted_bytes / element_bytes;
    if !is_parted(operation) {
        return Counts { count: whole, send: whole, receive: whole };
    }
    let unit = (PART_ALIGNMENT / element_bytes).max(1);
    let part = whole / ranks / unit * unit;
    let all = part * ranks;
    let (send, receive) = match operation {
        Operation::AllGather | Operation::Gather | Operation::Hypercube => (part, all),
        Operation::ReduceScatter | Operation::Scatter => (all, part),
        _ => (all, all),
    };
    Counts { count: part, send, receive }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows of published runs: operation, ranks, bytes, microseconds, algbw, busbw.
    #[test]
    fn agrees_with_published_rows() {
        let rows = [
            (Operation::AllReduce, 8, 65536, 37.54, 1.75, 3.06),
            (Operation::AllReduce, 16, 4_294_967_296, 73877.0, 58.14, 109.01),
            (Operation::AllReduce, 8, 8_589_934_592, 94752.0, 90.66, 158.65),
        ];
        for (operation, ranks, size, time, algbw, busbw) in rows {
            let found = bandwidth(&operation, ranks, size, time).unwrap();
            assert!((found.algbw - algbw).abs() < 0.006, "{found:?}");
            assert!((found.busbw - busbw).abs() < 0.006, "{found:?}");
        }
    }

    #[test]
    fn a_part_is_a_multiple_of_16_bytes() {
        let gathered = counts(&Operation::AllGather, 3, 4, 1024);
        assert_eq!(gathered, Counts { count: 84, send: 84, receive: 252 });
        assert_eq!(gathered.size_bytes(4), 1008);
        let scattered = counts(&Operation::ReduceScatter, 2, 4, 8);
        assert_eq!(scattered, Counts { count: 0, send: 0, receive: 0 });
        let exchanged = counts(&Operation::AllToAll, 2, 1, 64);
        assert_eq!(exchanged, Counts { count: 32, send: 64, receive: 64 });
        let reduced = counts(&Operation::AllReduce, 3, 4, 1030);
        assert_eq!(reduced, Counts { count: 257, send: 257, receive: 257 });
    }

    #[test]
    fn one_rank_carries_nothing_over_links() {
        assert_eq!(bus_factor(&Operation::AllReduce, 1), Some(0.0));
        assert_eq!(bus_factor(&Operation::Broadcast, 1), Some(1.0));
        assert_eq!(bus_factor(&Operation::AllReduce, 0), None);
        assert_eq!(bandwidth(&Operation::AllReduce, 2, 8, 0.0), None);
    }

    proptest! {
        #[test]
        fn no_call_is_larger_than_wanted(
            at in 0..Operation::NAMED.len(), ranks in 0u32..100, element in 0u64..9,
            wanted in 0u64..u64::MAX,
        ) {
            let found = counts(&Operation::NAMED[at], ranks, element, wanted);
            prop_assert!(found.size_bytes(element) <= wanted);
        }
    }
}
