//! Benchmark results: the file format of `regatta bench`, and the common model into which the
//! output of nccl-tests, rccl-tests and OSU is parsed.
//!
//! Times are in microseconds, bandwidths in GB/s (10⁹ bytes), sizes in bytes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Document;

mod measurement;
mod operation;
mod pairs;
mod roofline;

pub use measurement::{Measurement, TimeStats};
pub use operation::Operation;
pub use pairs::{PairEndpoint, PairMatrices, PairMatrix};
pub use roofline::{RankRoofline, Rate, RateTest, RateUnit, RooflineKind, RooflineRow};

/// The benchmark program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BenchProgram {
    /// `regatta bench`.
    Regatta,
    /// NVIDIA's nccl-tests.
    NcclTests,
    /// AMD's rccl-tests.
    RcclTests,
    /// The OSU micro-benchmarks.
    Osu,
    /// Another or unknown program.
    #[default]
    Other,
}

impl fmt::Display for BenchProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One run of a benchmark.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchResult {
    /// The benchmark program.
    pub program: BenchProgram,
    /// Label in comparisons: `2 nodes, no plug-in`.
    pub label: String,
    /// The command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Start time, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_unix_s: Option<u64>,
    /// Summary of the machine; the first node's if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<BenchMachine>,
    /// World size and nodes.
    pub shape: BenchShape,
    /// The communication backend: `tcp`, `shm`, `nccl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The transports in use: `shared memory`, `TCP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Relevant environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Versions by component: `nccl`, `regatta`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Benchmark parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BenchParameters>,
    /// The ranks and their devices, as reported by the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<BenchDevice>,
    /// The measurements, one table per operation.
    pub tables: Vec<BenchTable>,
    /// Other tables, such as images per second, as raw cells.
    #[serde(alias = "sheets", skip_serializing_if = "Vec::is_empty")]
    pub raw_tables: Vec<RawTable>,
    /// Node roofline: peak rates of each rank's devices, memory and file system.
    #[serde(alias = "ceilings", skip_serializing_if = "Vec::is_empty")]
    pub roofline: Vec<RankRoofline>,
    /// Bandwidth and latency of every pair of ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairMatrices>,
    /// The summary printed by the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<BenchSummary>,
    /// Whether the run finished. The result of an interrupted run contains what was measured.
    pub complete: bool,
    /// Further output lines of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Machine summary, to distinguish results of different machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchMachine {
    /// Host or system name.
    pub name: String,
    /// CPU model.
    pub processor: String,
    /// Physical cores.
    pub cores: u32,
    /// Memory size.
    pub memory_bytes: u64,
    /// GPU models, one entry per GPU.
    pub gpus: Vec<String>,
    /// Network interfaces.
    pub nics: Vec<String>,
}

/// World size and nodes. Unknown values are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchShape {
    /// World size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Number of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Ranks per node, if it is the same on all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<u32>,
    /// Number of nodes as NCCL counts them: ranks with different `NCCL_HOSTID` are on different nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl_nodes: Option<u32>,
    /// Host names, in rank order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// Benchmark parameters: the options of nccl-tests. Old versions do not print all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchParameters {
    /// Threads per process (`-t`).
    pub threads: u64,
    /// GPUs per thread (`-g`).
    pub devices: u64,
    /// Minimum size (`-b`).
    pub min_bytes: u64,
    /// Maximum size (`-e`).
    pub max_bytes: u64,
    /// Size increment (`-i`) or factor (`-f`).
    pub step: SizeStep,
    /// Warm-up iterations (`-w`).
    pub warmup: u64,
    /// Timed iterations (`-n`).
    pub iterations: u64,
    /// Calls aggregated per iteration (`-m`).
    #[serde(alias = "aggregated", skip_serializing_if = "Option::is_none")]
    pub agg_iters: Option<u64>,
    /// Iterations whose results are checked (`-c`).
    pub check: u64,
    /// CUDA graph launches (`-G`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<u64>,
    /// Misalignment of the buffers, in elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unalign: Option<u64>,
}

/// The step from one message size to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizeStep {
    /// Multiplication factor.
    Factor(u64),
    /// Increment in bytes.
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
    /// Its group, if the ranks were split into several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Process ID.
    pub pid: u64,
    /// Host name.
    #[serde(alias = "hostname")]
    pub host: String,
    /// Device index on the node.
    pub device: u32,
    /// PCI bus ID: `0000:07:00`.
    #[serde(alias = "device_hex")]
    pub bus: String,
    /// Device model.
    #[serde(alias = "device_info")]
    pub name: String,
}

/// The summary printed by the program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchSummary {
    /// Wrong elements over all sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_bounds: Option<u64>,
    /// Mean bus bandwidth over all sizes, out of place and in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average_busbw: Option<f64>,
    /// Whether the mean reached the required minimum.
    #[serde(alias = "average_good", skip_serializing_if = "Option::is_none")]
    pub average_ok: Option<bool>,
}

/// Measurements of one operation over message sizes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchTable {
    /// The operation.
    pub operation: Operation,
    /// Element type as the program names it: `float`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Reduction operation: `sum`, or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redop: Option<String>,
    /// Root rank; -1 if the operation has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<i64>,
    /// The measurements, in the order taken.
    pub rows: Vec<BenchRow>,
}

/// Measurements of one message size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchRow {
    /// Message size by the program's definition: the larger buffer of a rank for nccl-tests and
    /// Regatta, the contribution of one rank for OSU (a fraction of an all-gather's output).
    pub size_bytes: u64,
    /// The count argument of the call, in elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Out-of-place measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_place: Option<Measurement>,
    /// In-place measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place: Option<Measurement>,
    /// The input line, which preserves the program's precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// A table of any content, as raw cells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawTable {
    /// The heading above it.
    pub title: String,
    /// The rows of cells, column headers first.
    pub rows: Vec<Vec<String>>,
}

impl BenchResult {
    /// The distinct operations, in order of first occurrence.
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
    const WRITTEN_BY: &'static str = "regatta bench -J";

    fn inconsistency(&self) -> Option<String> {
        if self.shape.ranks == Some(0) {
            return Some("the world size is 0".to_owned());
        }
        for table in &self.tables {
            for row in &table.rows {
                let both = [&row.out_of_place, &row.in_place];
                if let Some(value) = both.into_iter().flatten().find_map(Measurement::negative) {
                    let (name, size) = (&table.operation, row.size_bytes);
                    return Some(format!("{name} of {size} bytes has a negative value: {value}"));
                }
            }
        }
        let invalid = self.roofline.iter().find_map(|entry| {
            let (value, case) = (entry.row.invalid_value()?, &entry.row.case);
            Some(format!("{case} of rank {} has an invalid value: {value}", entry.rank))
        });
        invalid.or_else(|| self.pairs.as_ref().and_then(PairMatrices::inconsistency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{from_json, to_json};

    fn one_row(time_us: f64) -> BenchResult {
        let measured = Measurement { time_us: Some(time_us), ..Measurement::default() };
        let row = BenchRow { size_bytes: 8, out_of_place: Some(measured), ..BenchRow::default() };
        let (operation, rows) = (Operation::AllReduce, vec![row.clone(), row]);
        let table = BenchTable { operation, rows, ..BenchTable::default() };
        BenchResult { tables: vec![table], ..BenchResult::default() }
    }

    #[test]
    fn results_round_trip_through_json() {
        let result = one_row(37.54);
        let text = to_json(&result).unwrap();
        assert!(text.contains("\"operation\": \"all-reduce\""), "{text}");
        assert_eq!(from_json::<BenchResult>(&text).unwrap(), result);
    }

    #[test]
    fn negative_time_is_rejected_with_operation_and_size() {
        let text = to_json(&one_row(-1.0)).unwrap();
        let error = from_json::<BenchResult>(&text).unwrap_err().to_string();
        assert!(error.contains("all-reduce of 8 bytes"), "{error}");
    }

    #[test]
    fn roofline_rows_round_trip_and_are_validated() {
        let row = RooflineRow {
            kind: RooflineKind::Disk,
            case: "create".to_owned(),
            unit: RateUnit::FilesPerSecond,
            best: 12.5,
            ..RooflineRow::default()
        };
        let entry = RankRoofline { rank: 3, host: "n1".to_owned(), row };
        let mut result = BenchResult { roofline: vec![entry], ..BenchResult::default() };
        let text = to_json(&result).unwrap();
        assert!(text.contains("\"kind\": \"disk\"") && text.contains("\"files/s\""), "{text}");
        assert_eq!(from_json::<BenchResult>(&text).unwrap(), result);
        let old = text.replace("\"roofline\"", "\"ceilings\"").replace("\"case\"", "\"what\"");
        assert_eq!(from_json::<BenchResult>(&old).unwrap(), result);
        assert!(!to_json(&one_row(1.0)).unwrap().contains("roofline"));
        result.roofline[0].row.median = -1.0;
        let error = from_json::<BenchResult>(&to_json(&result).unwrap()).unwrap_err().to_string();
        assert!(error.contains("create of rank 3"), "{error}");
    }

    #[test]
    fn missing_fields_take_their_defaults() {
        let text = r#"{"format": "regatta-bench/1", "program": "osu", "tables": []}"#;
        assert_eq!(from_json::<BenchResult>(text).unwrap().program, BenchProgram::Osu);
    }
}
