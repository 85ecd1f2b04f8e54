//! Size, count and bandwidth as nccl-tests defines them.
//!
//! `size` is the largest buffer of a rank, `count` the element count passed to the call. For
//! all-gather, reduce-scatter, all-to-all, gather and scatter the buffer is split into one chunk per
//! rank, each a multiple of 16 bytes, and `count` is one chunk.

use regatta_model::Operation;

/// Alignment of a chunk in bytes.
const CHUNK_ALIGNMENT: u64 = 16;

/// Bandwidths in GB/s (10⁹ bytes/s).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// Algorithm bandwidth: size / time.
    pub algbw: f64,
    /// Bus bandwidth: traffic on the links, independent of the number of ranks.
    pub busbw: f64,
}

/// Buffer sizes of one call on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferSizes {
    /// The count passed to the call.
    pub count: u64,
    /// The `size` column: the larger buffer, in bytes.
    pub size_bytes: u64,
}

/// Whether the send or receive buffer of a rank has one chunk per rank.
pub fn is_chunked(operation: &Operation) -> bool {
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

/// busbw / algbw. `None` for operations without a bandwidth and for 0 ranks.
pub fn bus_factor(operation: &Operation, ranks: u32) -> Option<f64> {
    let n = f64::from(ranks);
    match operation {
        _ if ranks == 0 => None,
        Operation::Barrier | Operation::Unknown | Operation::Other(_) => None,
        Operation::AllReduce => Some(2.0 * (n - 1.0) / n),
        // Its algbw already excludes the rank's own chunk.
        Operation::Hypercube => Some(1.0),
        chunked if is_chunked(chunked) => Some((n - 1.0) / n),
        _ => Some(1.0),
    }
}

/// Bandwidths of a call. `None` if the operation has none or the time is not positive.
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
    // 1 byte/µs = 0.001 GB/s.
    let algbw = counted / time_us / 1e3;
    Some(Bandwidth { algbw, busbw: algbw * factor })
}

/// Buffers of a call for a requested size, rounded down to the chunk alignment.
pub fn buffer_sizes(
    operation: &Operation,
    ranks: u32,
    element_bytes: u64,
    requested_bytes: u64,
) -> BufferSizes {
    let (ranks, element_bytes) = (u64::from(ranks.max(1)), element_bytes.max(1));
    let elements = requested_bytes / element_bytes;
    let (count, chunks) = match is_chunked(operation) {
        true => {
            let unit = (CHUNK_ALIGNMENT / element_bytes).max(1);
            (elements / ranks / unit * unit, ranks)
        }
        false => (elements, 1),
    };
    BufferSizes { count, size_bytes: count * chunks * element_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Published rows: operation, ranks, bytes, µs, algbw, busbw.
    #[test]
    fn bandwidth_matches_published_rows() {
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
    fn chunks_are_multiples_of_16_bytes() {
        let cases = [
            (Operation::AllGather, 3, 4, 1024, [84, 1008]),
            (Operation::ReduceScatter, 2, 4, 8, [0, 0]),
            (Operation::AllToAll, 2, 1, 64, [32, 64]),
            (Operation::AllReduce, 3, 4, 1030, [257, 1028]),
        ];
        for (operation, ranks, element, requested, [count, size_bytes]) in cases {
            let found = buffer_sizes(&operation, ranks, element, requested);
            assert_eq!(found, BufferSizes { count, size_bytes }, "{operation}");
        }
    }

    #[test]
    fn bus_factor_of_a_single_rank() {
        assert_eq!(bus_factor(&Operation::AllReduce, 1), Some(0.0));
        assert_eq!(bus_factor(&Operation::Broadcast, 1), Some(1.0));
        assert_eq!(bus_factor(&Operation::AllReduce, 0), None);
        assert_eq!(bandwidth(&Operation::AllReduce, 2, 8, 0.0), None);
    }

    proptest! {
        #[test]
        fn buffers_never_exceed_the_requested_size(
            at in 0..Operation::KNOWN.len(), ranks in 0u32..100, element in 0u64..9,
            requested in 0u64..u64::MAX,
        ) {
            let found = buffer_sizes(&Operation::KNOWN[at], ranks, element, requested);
            prop_assert!(found.size_bytes <= requested);
        }
    }
}
