//! A benchmark run: operations, data types, reductions and sizes, in place and out of place.

use std::time::Instant;

use regatta_comm::{CallKind, Comm, DType, ReduceOp};
use regatta_model::{BenchRow, BenchTable, Measurement, Operation};
use serde::{Deserialize, Serialize};

use super::case::{CallSpec, CollectiveCase, MemoryKind, kind};
use super::eta::Eta;
use super::event::{BenchEvent, BenchProgress};
use super::measure::{IterationCounts, RankAverage, check, measure};
use super::nccl_names;
use super::sizes::distinct;
use crate::CommResult;
use crate::bus_bandwidth::{self, BufferSizes};

/// What a run measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Operations; one or more tables each.
    pub operations: Vec<Operation>,
    /// Data types.
    pub dtypes: Vec<DType>,
    /// Reductions, for operations that reduce.
    pub ops: Vec<ReduceOp>,
    /// Root rank, for rooted operations.
    pub root: u32,
    /// Message sizes in bytes.
    pub sizes: Vec<u64>,
    /// Iterations per case.
    pub iterations: IterationCounts,
    /// Default: the mean, but the maximum for rooted host operations, where some ranks return as
    /// soon as they have sent their data.
    pub average: Option<RankAverage>,
    /// Memory of the buffers.
    pub memory: MemoryKind,
}

impl RunConfig {
    /// The sizes of the table of a call.
    fn distinct_sizes(&self, call: &CallSpec, ranks: u32) -> Vec<u64> {
        let element = call.dtype.size() as u64;
        let sizes = |size| bus_bandwidth::buffer_sizes(&call.operation, ranks, element, size);
        distinct(&self.sizes, |size| sizes(size).size_bytes)
    }

    /// The call of each table, without a size.
    fn table_calls(&self) -> Vec<CallSpec> {
        let mut calls = Vec::new();
        for operation in &self.operations {
            let reduces = kind(operation).is_some_and(CallKind::reduces);
            let ops = if reduces { self.ops.as_slice() } else { &[ReduceOp::Sum] };
            for &dtype in &self.dtypes {
                let (root, count, in_place) = (self.root, 0, false);
                let call = |&op| {
                    let operation = operation.clone();
                    CallSpec { operation, dtype, op, root, count, in_place }
                };
                calls.extend(ops.iter().map(call));
            }
        }
        calls
    }
}

/// Runs the benchmark and reports events. Collective: all ranks call it and see the same events.
pub fn run(
    comm: &dyn Comm,
    config: &RunConfig,
    on_event: &mut dyn FnMut(BenchEvent),
) -> CommResult {
    let with_sizes = |call: CallSpec| (config.distinct_sizes(&call, comm.size()), call);
    let tables: Vec<_> = config.table_calls().into_iter().map(with_sizes).collect();
    let total = tables.iter().map(|(sizes, _)| sizes.len()).sum();
    let mut eta = Eta::new(tables.iter().flat_map(|(sizes, _)| sizes).copied());
    let mut done = 0;
    for (sizes, call) in &tables {
        on_event(BenchEvent::TableStarted(table(call)));
        for &size in sizes {
            let (task, eta_s) = (format!("{} of {size} bytes", call.operation), eta.seconds());
            on_event(BenchEvent::Progress(BenchProgress { task, done, total, eta_s }));
            let start = Instant::now();
            let row = row(comm, config, call, size)?;
            eta.done(size, start.elapsed().as_secs_f64());
            done += 1;
            on_event(BenchEvent::Row(Box::new(row)));
        }
    }
    Ok(())
}

/// An empty table.
fn table(call: &CallSpec) -> BenchTable {
    let kind = kind(&call.operation);
    let reduces = kind.is_some_and(CallKind::reduces);
    let rooted = kind.is_some_and(CallKind::has_root);
    BenchTable {
        operation: call.operation.clone(),
        dtype: Some(nccl_names::dtype_name(call.dtype).to_owned()),
        redop: Some(if reduces { nccl_names::redop_name(call.op) } else { "none" }.to_owned()),
        root: Some(if rooted { i64::from(call.root) } else { -1 }),
        rows: Vec::new(),
    }
}

/// One size, out of place and in place.
fn row(comm: &dyn Comm, config: &RunConfig, call: &CallSpec, size: u64) -> CommResult<BenchRow> {
    let CallSpec { operation, dtype, .. } = call;
    let BufferSizes { count, size_bytes } =
        bus_bandwidth::buffer_sizes(operation, comm.size(), dtype.size() as u64, size);
    let one = |in_place: bool| -> CommResult<Option<Measurement>> {
        // Send and receive buffers are always separate.
        if in_place && *operation == Operation::SendRecv {
            return Ok(None);
        }
        let call = CallSpec { count: count as usize, in_place, ..call.clone() };
        measure_call(comm, config, call, size_bytes).map(|(measured, _)| Some(measured))
    };
    let (out_of_place, in_place) = (one(false)?, one(true)?);
    Ok(BenchRow { size_bytes, count: Some(count), out_of_place, in_place, line: None })
}

/// Measures one call with the memory, iterations and average of `config`. Also returns the wrong elements of
/// each rank, none if no results are checked.
pub fn measure_call(
    comm: &dyn Comm,
    config: &RunConfig,
    call: CallSpec,
    size_bytes: u64,
) -> CommResult<(Measurement, Vec<u64>)> {
    let operation = call.operation.clone();
    let mut case = CollectiveCase::new(comm, call, config.memory)?;
    let queued = config.memory == MemoryKind::Device;
    let timed = measure(&mut case, &config.iterations, queued)?;
    let rooted = kind(&operation).is_some_and(CallKind::has_root);
    let default = if rooted && !queued { RankAverage::Max } else { RankAverage::Avg };
    let average = config.average.unwrap_or(default);
    let measured = timed.reduce_over_ranks(comm, &operation, size_bytes, average)?;
    let by_rank = check(&mut case, &config.iterations)?;
    let wrong = by_rank.as_ref().map(|ranks| ranks.iter().copied().fold(0, u64::saturating_add));
    Ok((Measurement { wrong, ..measured }, by_rank.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::testing::on_ranks;

    fn config(operations: &[Operation]) -> RunConfig {
        RunConfig {
            operations: operations.to_vec(),
            dtypes: DType::ALL.to_vec(),
            ops: ReduceOp::ALL.to_vec(),
            root: 1,
            sizes: vec![0, 8, 1000, 70_000],
            iterations: IterationCounts { warmup: 1, timed: 2, adaptive: false, check: 1 },
            average: None,
            memory: MemoryKind::Heap,
        }
    }

    fn all() -> Vec<Operation> {
        let supported = |o: &Operation| kind(o).is_some() || *o == Operation::SendRecv;
        Operation::KNOWN.into_iter().filter(supported).collect()
    }

    /// Events of rank 0.
    fn events_of(ranks: u32, config: &RunConfig) -> Vec<BenchEvent> {
        let mut events = on_ranks(ranks, |comm| {
            let mut events = Vec::new();
            run(&comm, config, &mut |event| events.push(event)).unwrap();
            events
        });
        events.swap_remove(0)
    }

    fn rows(events: &[BenchEvent]) -> Vec<&BenchRow> {
        let mut rows: Vec<&BenchRow> = Vec::new();
        for event in events {
            rows.extend(if let BenchEvent::Row(row) = event { Some(&**row) } else { None });
        }
        rows
    }

    #[test]
    fn every_operation_is_correct_out_of_place_and_in_place() {
        for ranks in [2, 3] {
            let config = config(&all());
            let events = events_of(ranks, &config);
            let rows = rows(&events);
            // 9 types × 9 operations, 3 of which reduce in 5 ways. 5 operations are chunked, 1 of
            // which reduces; for these, 8 bytes round to 0.
            let (chunked, unchunked) = (4 + 5, 2 + 2 * 5);
            assert_eq!(rows.len(), (chunked * 3 + unchunked * 4) * 9);
            for row in rows {
                let out = row.out_of_place.as_ref().unwrap();
                assert_eq!(out.wrong, Some(0), "{row:?}");
                assert!(row.in_place.as_ref().is_none_or(|m| m.wrong == Some(0)), "{row:?}");
                assert!(out.time_us > Some(0.0) && out.rank_times_us.len() == ranks as usize);
            }
        }
    }

    #[test]
    fn sizes_equal_after_rounding_are_measured_once() {
        let mut config = config(&[Operation::AllGather, Operation::AllReduce]);
        (config.dtypes, config.sizes) = (vec![DType::F32], vec![8, 16, 32, 40, 64]);
        let events = events_of(2, &config);
        let sizes: Vec<u64> = rows(&events).iter().map(|row| row.size_bytes).collect();
        assert_eq!(sizes[..2], [32, 64]);
        assert_eq!(sizes[2..7], config.sizes, "an all-reduce is not chunked");
        let last = events.iter().rev().find_map(|event| match event {
            BenchEvent::Progress(BenchProgress { done, total, .. }) => Some((*done, *total)),
            _ => None,
        });
        assert_eq!(last, Some((sizes.len() - 1, sizes.len())));
    }

    #[test]
    fn tables_use_nccl_tests_names() {
        let mut config = config(&[Operation::Broadcast, Operation::ReduceScatter]);
        config.dtypes = vec![DType::F32];
        (config.ops, config.sizes) = (vec![ReduceOp::Average], vec![64]);
        let events = events_of(2, &config);
        let key = |event: &BenchEvent| match event {
            BenchEvent::TableStarted(t) => Some((t.dtype.clone()?, t.redop.clone()?, t.root?)),
            _ => None,
        };
        let keys: Vec<_> = events.iter().filter_map(key).collect();
        let expected = [("float", "none", 1), ("float", "avg", -1)];
        assert_eq!(keys, expected.map(|(dtype, op, root)| (dtype.into(), op.into(), root)));
    }

    #[test]
    fn the_times_of_all_ranks_are_combined() {
        let ranks = [3.0, 1.0, 8.0];
        let all = [RankAverage::Rank0, RankAverage::Avg, RankAverage::Min, RankAverage::Max];
        assert_eq!(all.map(|average| average.of(&ranks)), [3.0, 4.0, 1.0, 8.0]);
    }
}
