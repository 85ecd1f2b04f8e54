//! Our own documents, and the JSON of nccl-tests `-J`.

use std::collections::BTreeMap;

use regatta_model::bench::{
    BenchDevice, BenchParameters, BenchProgram, BenchSummary, SizeStep, TimeStats,
};
use regatta_model::document::{Document, from_json};
use regatta_model::{BenchResult, BenchRow, BenchTable, DocumentError, Measurement};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::nccl_tests::{set_operations, set_shape_from_devices};
use super::{ReadError, Result, context};
use crate::cases::table_of;

/// Parses either format.
pub(super) fn read(name: &str, text: &str) -> Result<BenchResult> {
    #[derive(Deserialize)]
    struct Peek {
        results: Option<IgnoredAny>,
        format: Option<IgnoredAny>,
    }
    let peek: Option<Peek> = serde_json::from_str(text).ok();
    let foreign = peek.is_some_and(|peek| peek.results.is_some() && peek.format.is_none());
    if !foreign {
        let named = |source| ReadError::Document { file: name.to_owned(), source };
        return from_json::<BenchResult>(text).map_err(named);
    }
    let named = |source| ReadError::Json { file: name.to_owned(), source };
    let report: NcclTestsReport = serde_json::from_str(text).map_err(named)?;
    Ok(report.into_result(name))
}

/// Whether a text is a list of documents rather than a launcher label.
pub(super) fn is_list(text: &str) -> bool {
    let inside = text.trim_start().strip_prefix('[').map(str::trim_start);
    inside.is_some_and(|inside| inside.starts_with(['{', ']']))
}

/// Parses a list of either format.
pub(super) fn read_list(name: &str, text: &str) -> Result<Vec<BenchResult>> {
    let (kind, writer) = (BenchResult::KIND, BenchResult::WRITTEN_BY);
    let broken = |source| DocumentError::Json { kind, source, writer };
    let named = |source| ReadError::Document { file: name.to_owned(), source: broken(source) };
    serde_json::from_str::<Vec<BTreeMap<String, IgnoredAny>>>(text).map_err(named)?;
    let mut results = Vec::new();
    // The text is valid JSON, so only white space and commas separate the documents.
    let mut rest = text.trim_start().trim_start_matches('[').trim_start();
    while rest.starts_with('{') {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
        values.next().transpose().map_err(named)?;
        let (document, after) = rest.split_at(values.byte_offset());
        results.push(read(name, document)?);
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    Ok(results)
}

/// The JSON of nccl-tests.
#[derive(Deserialize)]
struct NcclTestsReport {
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    nccl_version: Option<u64>,
    config: Option<RunOptions>,
    results: Vec<ResultRow>,
    out_of_bounds: Option<OutOfBounds>,
    average_bus_bandwidth: Option<AverageBusbw>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RunOptions {
    nthreads: u64,
    ngpus: u64,
    minimum_bytes: u64,
    maximum_bytes: u64,
    step_factor: Option<u64>,
    step_bytes: Option<u64>,
    warmup_iters: u64,
    iterations: u64,
    aggregated_iterations: Option<u64>,
    validation: u64,
    graph: Option<u64>,
    devices: Vec<BenchDevice>,
}

#[derive(Deserialize)]
struct ResultRow {
    size: u64,
    count: Option<u64>,
    #[serde(rename = "type")]
    dtype: Option<String>,
    redop: Option<String>,
    root: Option<String>,
    out_of_place: Option<RowMetrics>,
    in_place: Option<RowMetrics>,
    out_of_place_per_iter: Option<PerIteration>,
    in_place_per_iter: Option<PerIteration>,
    actual_iterations: Option<u64>,
}

#[derive(Deserialize)]
struct RowMetrics {
    #[serde(alias = "cpu_time")]
    time: Value,
    alg_bw: Value,
    bus_bw: Value,
    #[serde(default)]
    nwrong: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PerIteration {
    min_us: Value,
    max_us: Value,
    p50_us: Value,
    p95_us: Value,
    p99_us: Value,
    cv_pct: Value,
}

#[derive(Deserialize)]
struct OutOfBounds {
    count: u64,
}

#[derive(Deserialize)]
struct AverageBusbw {
    bandwidth: Value,
    #[serde(default)]
    okay: Value,
}

/// A non-negative number; nccl-tests writes other values as strings such as "nan".
fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|value| value.is_finite() && *value >= 0.0)
}

impl NcclTestsReport {
    fn into_result(self, name: &str) -> BenchResult {
        let mut result = BenchResult {
            program: BenchProgram::NcclTests,
            label: context::stem(name).to_owned(),
            command: (!self.args.is_empty()).then(|| self.args.join(" ")),
            complete: self.average_bus_bandwidth.is_some(),
            ..BenchResult::default()
        };
        let nccl = self.nccl_version.map(|version| ("nccl".to_owned(), version.to_string()));
        result.versions.extend(nccl);
        let set = self.env.iter().filter_map(|line| line.split_once('='));
        let set = set.filter(|(name, _)| is_relevant(name));
        result.settings = set.map(|(n, value)| (n.to_owned(), value.to_owned())).collect();
        if let Some(config) = self.config {
            result.parameters = Some(config.parameters());
            result.devices = config.devices;
        }
        for line in self.results {
            line.add_to(&mut result.tables);
        }
        let mean = self.average_bus_bandwidth.as_ref();
        if self.out_of_bounds.is_some() || mean.is_some() {
            result.summary = Some(BenchSummary {
                out_of_bounds: self.out_of_bounds.map(|bounds| bounds.count),
                average_busbw: mean.and_then(|mean| number(&mean.bandwidth)),
                average_ok: mean.and_then(|mean| mean.okay.as_bool()),
            });
        }
        set_shape_from_devices(&mut result);
        let hints = [self.args.first().cloned().unwrap_or_default(), name.to_owned()];
        set_operations(&mut result, &hints);
        result
    }
}

/// Whether a variable may affect the measurement.
fn is_relevant(name: &str) -> bool {
    let prefixes = ["NCCL_", "RCCL_", "FI_", "UCX_", "CUDA_VISIBLE", "HIP_VISIBLE", "ROCR_VISIBLE"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

impl RunOptions {
    fn parameters(&self) -> BenchParameters {
        let bytes = self.step_bytes.map(SizeStep::Bytes);
        BenchParameters {
            threads: self.nthreads,
            devices: self.ngpus,
            min_bytes: self.minimum_bytes,
            max_bytes: self.maximum_bytes,
            step: self.step_factor.map(SizeStep::Factor).or(bytes).unwrap_or_default(),
            warmup: self.warmup_iters,
            iterations: self.iterations,
            agg_iters: self.aggregated_iterations,
            check: self.validation,
            graph: self.graph,
            unalign: None,
        }
    }
}

impl ResultRow {
    fn add_to(self, tables: &mut Vec<BenchTable>) {
        let iterations = self.actual_iterations;
        let measured = |metrics: Option<RowMetrics>, per_iteration: Option<PerIteration>| {
            let metrics = metrics?;
            Some(Measurement {
                time_us: number(&metrics.time),
                algbw: number(&metrics.alg_bw),
                busbw: number(&metrics.bus_bw),
                wrong: number(&metrics.nwrong).map(|wrong| wrong as u64),
                iterations,
                call_stats: per_iteration.map(PerIteration::into_stats),
                ..Measurement::default()
            })
        };
        let row = BenchRow {
            size_bytes: self.size,
            count: self.count,
            out_of_place: measured(self.out_of_place, self.out_of_place_per_iter),
            in_place: measured(self.in_place, self.in_place_per_iter),
            line: None,
        };
        let (dtype, redop) = (self.dtype, self.redop);
        let root = self.root.and_then(|root| root.trim().parse().ok());
        let key = BenchTable { dtype, redop, root, ..BenchTable::default() };
        table_of(tables, key).rows.push(row);
    }
}

impl PerIteration {
    fn into_stats(self) -> TimeStats {
        TimeStats {
            min_us: number(&self.min_us),
            p50_us: number(&self.p50_us),
            p90_us: None,
            p95_us: number(&self.p95_us),
            p99_us: number(&self.p99_us),
            max_us: number(&self.max_us),
            cv_percent: number(&self.cv_pct),
        }
    }
}
