//! Bandwidths as nccl-tests defines them.

use regatta_events::operation::OperationKind;

/// busbw / algbw: the traffic on the links, independent of the number of ranks. `None` for operations
/// without a bandwidth, and if the number of ranks is unknown.
pub fn bus_factor(kind: OperationKind, ranks: u32) -> Option<f64> {
    let n = f64::from(ranks);
    match kind {
        OperationKind::Send | OperationKind::Receive => Some(1.0),
        OperationKind::Barrier | OperationKind::Other(_) => None,
        _ if ranks == 0 => None,
        OperationKind::AllReduce => Some(2.0 * (n - 1.0) / n),
        kind if kind.counts_one_part() => Some((n - 1.0) / n),
        _ => Some(1.0),
    }
}

/// GB/s (10⁹ bytes/s). `None` without a time.
pub fn gigabytes_per_second(bytes: u64, nanoseconds: u64) -> Option<f64> {
    (nanoseconds > 0).then(|| bytes as f64 / nanoseconds as f64)
}

/// Whether no rank can leave the collective before all ranks have entered it.
pub fn is_synchronizing(kind: OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::AllReduce
            | OperationKind::AllGather
            | OperationKind::ReduceScatter
            | OperationKind::AllToAll
            | OperationKind::Barrier
    )
}
