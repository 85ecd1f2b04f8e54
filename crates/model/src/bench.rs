//! What a benchmark measured, with what it was measured on: the file of `regatta bench`, and what
//! the output of other benchmarks is read into.
//!
//! Times are in microseconds, bandwidths in GB/s (10⁹ bytes), sizes in bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Document;

mod ceiling;
mod operation;
mod pairs;

pub use ceiling::{Ceiling, CeilingKind, CeilingRow, RateUnit};
pub use operation::Operation;
pub use pairs::{Matrix, PairEnd, Pairs};

/// The program that measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// `regatta bench`.
    Regatta,
    /// NVIDIA's nccl-tests.
    NcclTests,
    /// AMD's rccl-tests.
    RcclTests,
    /// The OSU micro-benchmarks.
    Osu,
    /// Something else, or nobody knows.
    #[default]
    Other,
}

impl Program {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regatta => "regatta",
            Self::NcclTests => "nccl-tests",
            Self::RcclTests => "rccl-tests",
            Self::Osu => "osu",
            Self::Other => "other",
        }
    }
}

/// One run of a benchmark.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchResult {
    /// Who measured.
    pub program: Program,
    /// What to call it beside others: `2 nodes, no plug-in`.
    pub label: String,
    /// The command it was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// When it began, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_s: Option<u64>,
    /// The machine, in short; of many nodes the first one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<BenchMachine>,
    /// How many ranks, and where.
    pub shape: BenchShape,
    /// What carried the data: `tcp`, `shm`, `nccl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Environment variables that matter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Versions by what they are of: `nccl`, `regatta`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// What was to be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BenchParameters>,
    /// The ranks and their devices, as the program told them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<BenchDevice>,
    /// What was measured.
    pub tables: Vec<BenchTable>,
    /// Tables of other things, such as images per second, cell by cell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sheets: Vec<Sheet>,
    /// What each rank's devices, memory and file system can do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<Ceiling>,
    /// What every pair of ranks can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<Pairs>,
    /// The program's own closing figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<BenchSummary>,
    /// Whether the run came to its end. A run that was interrupted keeps what it has.
    pub complete: bool,
    /// What else the program said, line by line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A machine in short, to tell results of different ones apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchMachine {
    /// Its host or system name.
    pub name: String,
    /// The model of its processors.
    pub processor: String,
    /// Its cores.
    pub cores: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The models of its GPUs, one entry each.
    pub gpus: Vec<String>,
    /// Its network interfaces.
    pub nics: Vec<String>,
}

/// How many ranks there were, and where. What is not known is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchShape {
    /// Ranks of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Nodes of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Ranks of each node, if they are equally many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<u32>,
    /// The nodes' names, in the order of ranks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// What was to be measured: the options of nccl-tests. Old versions do not tell all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchParameters {
    /// Threads of a process.
    pub threads: u64,
    /// Devices of a thread.
    pub devices: u64,
    /// The smallest size.
    pub min_bytes: u64,
    /// The largest size.
    pub max_bytes: u64,
    /// From one size to the next.
    pub step: SizeStep,
    /// Rounds before the timed ones.
    pub warmup: u64,
    /// Timed rounds.
    pub iterations: u64,
    /// Calls of a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregated: Option<u64>,
    /// Rounds whose results are checked.
    pub check: u64,
    /// Launches of a captured graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<u64>,
    /// Elements by which buffers are out of alignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unalign: Option<u64>,
}

/// From one size to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizeStep {
    /// Times this.
    Factor(u64),
    /// Plus this many bytes.
    Bytes(u64),
}

impl Default for SizeStep {
    fn default() -> Self {
        Self::Factor(2)
    }
}

/// A rank and its device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchDevice {
    /// The rank.
    pub rank: u32,
    /// Its group, where ranks were split into several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Its process.
    pub pid: u64,
    /// Its node.
    pub host: String,
    /// The device's number on the node.
    pub device: u32,
    /// Where it is plugged in: `0000:07:00`.
    pub bus: String,
    /// Its model.
    pub name: String,
}

/// The program's own closing figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchSummary {
    /// Elements that were wrong, over all sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_bounds: Option<u64>,
    /// The mean of all bus bandwidths, out of place and in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_busbw: Option<f64>,
    /// Whether that mean was as high as was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_good: Option<bool>,
}

/// One operation over sizes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchTable {
    /// What was measured.
    pub operation: Operation,
    /// The elements' type, as the program names it: `float`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The reduction: `sum`, or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redop: Option<String>,
    /// The root; -1 where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<i64>,
    /// The measurements, in the order they were made in.
    pub rows: Vec<BenchRow>,
}

/// One size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchRow {
    /// The size as the program means it: with nccl-tests and us the larger buffer of a rank, with
    /// OSU's the message of one rank, which of an all-gather is a part.
    pub size_bytes: u64,
    /// The count a rank gives to the call, in elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// With two buffers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_place: Option<Measurement>,
    /// With one buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place: Option<Measurement>,
    /// The line it was read from, with the precision the program gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// What was measured of one size. What a program does not tell is absent, and so is what is not
/// finite, such as the bandwidth of a call that took no time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measurement {
    /// Time of one call, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_us: Option<f64>,
    /// Size over time, in GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algbw: Option<f64>,
    /// What the links carry, in GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busbw: Option<f64>,
    /// Wrong elements; absent where nothing was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
    /// The largest deviation, which early versions of nccl-tests tell in place of wrong elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// How many calls were timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
    /// How the times of single calls spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// How the ranks' mean times spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_spread: Option<Spread>,
    /// The mean time of each rank, in microseconds, by rank.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rank_times_us: Vec<f64>,
    /// Other figures of the program, by the names of their columns: `Overlap(%)`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub other: BTreeMap<String, f64>,
}

/// How times spread, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spread {
    /// The least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_us: Option<f64>,
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// Nine of ten are not above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_us: Option<f64>,
    /// 95 of 100 are not above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_us: Option<f64>,
    /// 99 of 100 are not above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// The greatest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
    /// The standard deviation in percent of the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cv_percent: Option<f64>,
}

/// A table of anything, cell by cell as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sheet {
    /// What stood above it.
    pub title: String,
    /// Its lines, the heads of columns first, each as its cells.
    pub rows: Vec<Vec<String>>,
}

impl BenchResult {
    /// The operations measured, each once, in order.
    pub fn operations(&self) -> Vec<&Operation> {
        let mut found: Vec<&Operation> = Vec::new();
        for table in &self.tables {
            if !found.contains(&&table.operation) {
                found.push(&table.operation);
            }
        }
        found
    }
}

impl Document for BenchResult {
    const KIND: &'static str = "bench";
    const VERSION: u32 = 1;

    fn fault(&self) -> Option<String> {
        if self.shape.ranks == Some(0) {
            return Some("it was measured by no rank".to_owned());
        }
        for table in &self.tables {
            for row in &table.rows {
                let both = [&row.out_of_place, &row.in_place];
                if let Some(figure) = both.into_iter().flatten().find_map(Measurement::negative) {
                    let (name, size) = (&table.operation, row.size_bytes);
                    return Some(format!(
                        "{name} of {size} bytes has a figure below zero: {figure}"
                    ));
                }
            }
        }
        let impossible = self.ceilings.iter().find_map(|ceiling| {
            let (figure, what) = (ceiling.row.impossible()?, &ceiling.row.what);
            Some(format!("{what} of rank {} cannot have the figure {figure}", ceiling.rank))
        });
        impossible.or_else(|| self.pairs.as_ref().and_then(Pairs::fault))
    }
}

impl Measurement {
    fn negative(&self) -> Option<f64> {
        let figures = [self.time_us, self.algbw, self.busbw, self.error];
        figures.into_iter().flatten().find(|figure| *figure < 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{from_json, to_json};

    fn one_row(time_us: f64) -> BenchResult {
        let measured = Measurement { time_us: Some(time_us), ..Measurement::default() };
        let row = BenchRow { size_bytes: 8, out_of_place: Some(measured), ..BenchRow::default() };
        let table = BenchTable {
            operation: Operation::AllReduce,
            rows: vec![row.clone(), row],
            ..BenchTable::default()
        };
        BenchResult { tables: vec![table], ..BenchResult::default() }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let result = one_row(37.54);
        let text = to_json(&result).unwrap();
        assert!(text.contains("\"operation\": \"all-reduce\""), "{text}");
        assert_eq!(from_json::<BenchResult>(&text).unwrap(), result);
    }

    #[test]
    fn a_time_below_zero_is_refused_by_name() {
        let text = to_json(&one_row(-1.0)).unwrap();
        let error = from_json::<BenchResult>(&text).unwrap_err().to_string();
        assert!(error.contains("all-reduce of 8 bytes"), "{error}");
    }

    #[test]
    fn ceilings_are_rows_with_rank_and_host() {
        let row = CeilingRow {
            kind: CeilingKind::Disk,
            what: "create".to_owned(),
            unit: RateUnit::FilesPerSecond,
            best: 12.5,
            ..CeilingRow::default()
        };
        let ceiling = Ceiling { rank: 3, host: "n1".to_owned(), row };
        let mut result = BenchResult { ceilings: vec![ceiling], ..BenchResult::default() };
        let text = to_json(&result).unwrap();
        assert!(text.contains("\"kind\": \"disk\"") && text.contains("\"files/s\""), "{text}");
        assert_eq!(from_json::<BenchResult>(&text).unwrap(), result);
        assert!(!to_json(&one_row(1.0)).unwrap().contains("ceilings"));
        result.ceilings[0].row.median = -1.0;
        let error = from_json::<BenchResult>(&to_json(&result).unwrap()).unwrap_err().to_string();
        assert!(error.contains("create of rank 3"), "{error}");
    }

    #[test]
    fn a_newer_reader_may_find_less_than_it_knows() {
        let text = r#"{"format": "regatta-bench/1", "program": "osu", "tables": []}"#;
        assert_eq!(from_json::<BenchResult>(text).unwrap().program, Program::Osu);
    }
}
