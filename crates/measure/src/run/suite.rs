//! All that a run measures: operations, types, reductions, sizes, in place and out of place.

use std::time::Instant;

use regatta_comm::{Comm, CommError, DType, Kind, ReduceOp};
use regatta_model::{BenchRow, BenchTable, Measurement, Operation};

use super::case::{Case, Memory, Shape, kind};
use super::event::{Event, Progress};
use super::left::Left;
use super::measure::{Rounds, check, measure};
use super::names;
use super::sizes::distinct;
use crate::formula;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// One table each.
    pub operations: Vec<Operation>,
    /// Of these types.
    pub dtypes: Vec<DType>,
    /// By these reductions, where there is one.
    pub ops: Vec<ReduceOp>,
    /// The root, where there is one.
    pub root: u32,
    /// The sizes, in bytes.
    pub sizes: Vec<u64>,
    /// How often.
    pub rounds: Rounds,
    /// Of which rank the time is; without it the mean, and of operations with a root in host memory
    /// the greatest, for there some are done as soon as they have given away what they have.
    pub average: Option<Average>,
    /// Where buffers lie.
    pub memory: Memory,
}

/// Which rank's time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Average {
    /// Rank 0's.
    First,
    /// The mean of all.
    Mean,
    /// The least.
    Least,
    /// The greatest.
    Greatest,
}

impl Average {
    /// The time that counts of the times of all ranks.
    pub fn of(self, ranks: &[f64]) -> f64 {
        let chosen = match self {
            Self::First => ranks.first().copied(),
            Self::Mean => Some(ranks.iter().sum::<f64>() / ranks.len().max(1) as f64),
            Self::Least => ranks.iter().copied().reduce(f64::min),
            Self::Greatest => ranks.iter().copied().reduce(f64::max),
        };
        chosen.unwrap_or(0.0)
    }
}

/// What one table is of.
#[derive(Debug, Clone)]
struct Topic {
    operation: Operation,
    dtype: DType,
    op: ReduceOp,
}

impl Topic {
    /// The sizes that its table has.
    fn sizes(&self, plan: &Plan, ranks: u32) -> Vec<u64> {
        let element = self.dtype.size() as u64;
        let counts = |size| formula::counts(&self.operation, ranks, element, size);
        distinct(&plan.sizes, |size| counts(size).size_bytes(element))
    }
}

impl Plan {
    /// One for each table.
    fn topics(&self) -> Vec<Topic> {
        let mut topics = Vec::new();
        for operation in &self.operations {
            let reduces = kind(operation).is_some_and(Kind::reduces);
            let ops = if reduces { self.ops.as_slice() } else { &[ReduceOp::Sum] };
            for &dtype in &self.dtypes {
                let topic = |&op| Topic { operation: operation.clone(), dtype, op };
                topics.extend(ops.iter().map(topic));
            }
        }
        topics
    }
}

/// Measures all of it, and tells of it as it goes on. All ranks call it alike; what they are told is
/// the same for all.
pub fn run(comm: &dyn Comm, plan: &Plan, tell: &mut dyn FnMut(Event)) -> Result<(), CommError> {
    let with_sizes = |topic: Topic| (topic.sizes(plan, comm.size()), topic);
    let tables: Vec<(Vec<u64>, Topic)> = plan.topics().into_iter().map(with_sizes).collect();
    let of = tables.iter().map(|(sizes, _)| sizes.len()).sum();
    let mut left = Left::new(tables.iter().flat_map(|(sizes, _)| sizes).copied());
    let mut done = 0;
    for (sizes, topic) in &tables {
        tell(Event::Table(table(plan, topic)));
        for &size in sizes {
            let doing = format!("{} of {size} bytes", topic.operation);
            tell(Event::Progress(Progress { doing, done, of, left_s: left.seconds() }));
            let start = Instant::now();
            let row = row(comm, plan, topic, size)?;
            left.done(size, start.elapsed().as_secs_f64());
            done += 1;
            tell(Event::Row(Box::new(row)));
        }
    }
    Ok(())
}

/// A table without rows.
fn table(plan: &Plan, topic: &Topic) -> BenchTable {
    let kind = kind(&topic.operation);
    let reduces = kind.is_some_and(Kind::reduces);
    let rooted = kind.is_some_and(Kind::has_root);
    BenchTable {
        operation: topic.operation.clone(),
        dtype: Some(names::of_dtype(topic.dtype).to_owned()),
        redop: Some(if reduces { names::of_op(topic.op) } else { "none" }.to_owned()),
        root: Some(if rooted { i64::from(plan.root) } else { -1 }),
        rows: Vec::new(),
    }
}

/// One size, both ways.
fn row(comm: &dyn Comm, plan: &Plan, topic: &Topic, size: u64) -> Result<BenchRow, CommError> {
    let element = topic.dtype.size() as u64;
    let counts = formula::counts(&topic.operation, comm.size(), element, size);
    let size_bytes = counts.size_bytes(element);
    let one = |in_place: bool| -> Result<Option<Measurement>, CommError> {
        // A rank has one buffer to send and another one to receive.
        if in_place && topic.operation == Operation::SendRecv {
            return Ok(None);
        }
        let shape = Shape {
            operation: topic.operation.clone(),
            dtype: topic.dtype,
            op: topic.op,
            root: plan.root,
            count: counts.count as usize,
            in_place,
        };
        let mut case = Case::new(comm, shape, plan.memory)?;
        let queued = plan.memory == Memory::Device;
        let timed = measure(comm, &mut case, &plan.rounds, queued)?;
        let rooted = kind(&topic.operation).is_some_and(Kind::has_root);
        let usual = if rooted && !queued { Average::Greatest } else { Average::Mean };
        let average = plan.average.unwrap_or(usual);
        let measured = timed.of_all(comm, &topic.operation, size_bytes, average)?;
        let wrong = check(comm, &mut case, &plan.rounds)?;
        Ok(Some(Measurement { wrong, ..measured }))
    };
    Ok(BenchRow {
        size_bytes,
        count: Some(counts.count),
        out_of_place: one(false)?,
        in_place: one(true)?,
        line: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_comm::fake;

    fn plan(operations: &[Operation]) -> Plan {
        Plan {
            operations: operations.to_vec(),
            dtypes: DType::ALL.to_vec(),
            ops: ReduceOp::ALL.to_vec(),
            root: 1,
            sizes: vec![0, 8, 1000, 70_000],
            rounds: Rounds { warmup: 1, iterations: 2, or_more: false, check: 1 },
            average: None,
            memory: Memory::Heap,
        }
    }

    fn all() -> Vec<Operation> {
        let names = Operation::NAMED;
        names.into_iter().filter(|o| kind(o).is_some() || *o == Operation::SendRecv).collect()
    }

    /// What rank 0 is told.
    fn told(ranks: u32, plan: &Plan) -> Vec<Event> {
        let run = |comm: regatta_comm::background::Background| {
            let mut events = Vec::new();
            run(&comm, plan, &mut |event| events.push(event)).unwrap();
            events
        };
        std::thread::scope(|scope| {
            let world = fake::world(ranks);
            let threads: Vec<_> = world.into_iter().map(|c| scope.spawn(|| run(c))).collect();
            let mut all: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            all.swap_remove(0)
        })
    }

    #[test]
    fn every_operation_is_right_both_ways() {
        for ranks in [2, 3] {
            let plan = plan(&all());
            let events = told(ranks, &plan);
            let rows: Vec<_> = events
                .iter()
                .filter_map(|e| if let Event::Row(r) = e { Some(r) } else { None })
                .collect();
            // Nine types of nine operations, three of which reduce in five ways. Five are of parts,
            // one of which reduces: 8 bytes are nothing to them, as 0 are.
            let (parted, whole) = (4 + 5, 2 + 2 * 5);
            assert_eq!(rows.len(), (parted * 3 + whole * 4) * 9);
            for row in rows {
                let out = row.out_of_place.as_ref().unwrap();
                assert_eq!(out.wrong, Some(0), "{row:?}");
                assert!(row.in_place.as_ref().is_none_or(|m| m.wrong == Some(0)), "{row:?}");
                assert!(out.time_us > Some(0.0) && out.rank_times_us.len() == ranks as usize);
            }
        }
    }

    #[test]
    fn sizes_that_are_the_same_are_measured_once() {
        let mut plan = plan(&[Operation::AllGather, Operation::AllReduce]);
        (plan.dtypes, plan.sizes) = (vec![DType::F32], vec![8, 16, 32, 40, 64]);
        let events = told(2, &plan);
        let row = |e: &Event| if let Event::Row(r) = e { Some(r.size_bytes) } else { None };
        let sizes: Vec<u64> = events.iter().filter_map(row).collect();
        assert_eq!(sizes[..2], [32, 64]);
        assert_eq!(sizes[2..7], plan.sizes, "an all-reduce has no parts");
        let last = events.iter().rev().find_map(|event| match event {
            Event::Progress(Progress { done, of, .. }) => Some((*done, *of)),
            _ => None,
        });
        assert_eq!(last, Some((sizes.len() - 1, sizes.len())));
    }

    #[test]
    fn tables_are_named_as_nccl_tests_names_them() {
        let mut plan = plan(&[Operation::Broadcast, Operation::ReduceScatter]);
        plan.dtypes = vec![DType::F32];
        plan.ops = vec![ReduceOp::Average];
        plan.sizes = vec![64];
        let events = told(2, &plan);
        let tables: Vec<_> = events
            .iter()
            .filter_map(|e| if let Event::Table(t) = e { Some(t) } else { None })
            .map(|t| (t.dtype.as_deref(), t.redop.as_deref(), t.root))
            .collect();
        let named =
            [(Some("float"), Some("none"), Some(1)), (Some("float"), Some("avg"), Some(-1))];
        assert_eq!(tables, named);
    }

    #[test]
    fn whose_time_counts() {
        let ranks = [3.0, 1.0, 8.0];
        let all = [Average::First, Average::Mean, Average::Least, Average::Greatest];
        assert_eq!(all.map(|average| average.of(&ranks)), [3.0, 4.0, 1.0, 8.0]);
    }
}
