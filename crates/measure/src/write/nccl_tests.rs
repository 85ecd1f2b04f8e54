//! The exact output format of nccl-tests 2.19, so that existing parsers work.

use regatta_model::bench::{BenchDevice, BenchParameters, BenchSummary, SizeStep, TimeStats};
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement, Operation};

use super::format::{fixed_width, format_g};
use crate::buffer_mode::BufferMode;
use crate::read::nccl_tests::columns::ABSENT;

/// Columns of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableLayout {
    /// Mean times.
    Means,
    /// Also the per-iteration statistics of `-I`.
    Iterations,
}

impl TableLayout {
    /// The columns for which a result has values.
    pub fn for_result(result: &BenchResult) -> Self {
        let rows = result.tables.iter().flat_map(|table| &table.rows);
        let measured = rows.flat_map(|row| BufferMode::ALL.map(|place| place.measurement(row)));
        let mut stats = measured.flatten().filter_map(|measured| measured.call_stats.as_ref());
        let shown = stats.any(|stats| iteration_columns(stats).iter().any(Option::is_some));
        if shown { Self::Iterations } else { Self::Means }
    }
}

fn iteration_columns(stats: &TimeStats) -> [Option<f64>; 4] {
    [stats.min_us, stats.max_us, stats.p99_us, stats.cv_percent]
}

/// A whole result: one nccl-tests run per operation.
pub fn nccl_tests(result: &BenchResult) -> String {
    let (layout, mut text) = (TableLayout::for_result(result), String::new());
    for operation in result.operations() {
        text += &preamble(result, operation);
        text += &header(layout);
        for table in result.tables.iter().filter(|table| table.operation == *operation) {
            text.extend(table.rows.iter().map(|one| row(layout, table, one)));
        }
        if result.complete {
            text += &footer(result, operation);
        }
    }
    text
}

/// nccl-tests' program for an operation.
pub fn program_name(operation: &Operation) -> String {
    match operation {
        Operation::AllToAll => "alltoall_perf".to_owned(),
        Operation::AllToAllV => "alltoallv_perf".to_owned(),
        Operation::SendRecv => "sendrecv_perf".to_owned(),
        other => format!("{}_perf", other.to_string().replace('-', "_")),
    }
}

/// The lines before the table.
pub fn preamble(result: &BenchResult, operation: &Operation) -> String {
    let mut text = String::new();
    let version = |name: &str| result.versions.get(name).map(String::as_str);
    let all = (version("nccl-tests"), version("nccl-headers"), version("nccl-library"));
    if let (Some(own), Some(headers), Some(library)) = all {
        text =
            format!("# nccl-tests version {own} nccl-headers={headers} nccl-library={library}\n");
    }
    if let Some(own) = version("regatta") {
        text += &format!("# regatta version {own}\n");
    }
    text += &format!("# Collective test starting: {}\n", program_name(operation));
    text.extend(result.parameters.as_ref().map(parameters_line));
    text.extend(result.transport.as_ref().map(|name| format!("# Transport: {name}\n")));
    let notes = result.notes.iter().filter(|note| note.starts_with('#'));
    text.extend(notes.map(|note| format!("{note}\n")));
    text += "#\n# Using devices\n";
    text.extend(result.devices.iter().map(device));
    let libraries =
        [("rccl-tests", "rccl-tests: Version"), ("nccl", "NCCL version"), ("rccl", "RCCL version")];
    let line = |(name, words)| Some(format!("{words} {}\n", version(name)?));
    text.extend(libraries.into_iter().filter_map(line));
    text
}

fn parameters_line(parameters: &BenchParameters) -> String {
    let BenchParameters {
        threads, devices, min_bytes, max_bytes, warmup, iterations, check, ..
    } = parameters;
    let (step, kind) = match parameters.step {
        SizeStep::Factor(factor) => (factor, "factor"),
        SizeStep::Bytes(bytes) => (bytes, "bytes"),
    };
    let mut text = format!(
        "# nThread {threads} nGpus {devices} minBytes {min_bytes} maxBytes {max_bytes} \
         step: {step}({kind}) warmup iters: {warmup} iters: {iterations}"
    );
    let options = [
        ("agg iters", parameters.agg_iters),
        ("validation", Some(*check)),
        ("graph", parameters.graph),
        ("unalign", parameters.unalign),
    ];
    let option = |(name, value): (&str, Option<u64>)| Some(format!(" {name}: {}", value?));
    text.extend(options.into_iter().filter_map(option));
    text + "\n"
}

fn device(device: &BenchDevice) -> String {
    let BenchDevice { rank, pid, host, device: index, bus, name, .. } = device;
    // Versions without groups have an extra space.
    let group = match device.group {
        Some(group) => format!("#  Rank {rank:2} Group {group:2}"),
        None => format!("#   Rank {rank:2}"),
    };
    format!("{group} Pid {pid:6} on {host:>10} device {index:2} [{bus}] {name}\n")
}

/// The column headers.
pub fn header(layout: TableLayout) -> String {
    let lead = |names: [&str; 5]| {
        let [size, count, dtype, redop, root] = names;
        format!("# {size:>10}  {count:>12}  {dtype:>8}  {redop:>6}  {root:>6}")
    };
    let (groups, names, units): (&str, &[&str], &[&str]) = match layout {
        TableLayout::Means => (
            "           out-of-place                       in-place          ",
            &["time", "algbw", "busbw", "#wrong"],
            &["(us)", "(GB/s)", "(GB/s)", ""],
        ),
        TableLayout::Iterations => (
            "              out-of-place (+ per-iteration)                                \
             in-place (+ per-iteration)",
            &["time", "algbw", "busbw", "#wrong", "i_min", "i_max", "i_p99", "i_cv%"],
            &["(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(%)"],
        ),
    };
    let columns = |names: &[&str]| -> String {
        let one = |(index, name): (usize, &&str)| {
            let width = if (1..=3).contains(&index) { 6 } else { 7 };
            format!("  {name:>width$}")
        };
        names.iter().enumerate().map(one).collect()
    };
    let (names, units) = (columns(names), columns(units));
    format!(
        "#\n{}{groups}\n{}{names}{names} \n{}{units}{units} \n",
        lead([""; 5]),
        lead(["size", "count", "type", "redop", "root"]),
        lead(["(B)", "(elements)", "", "", ""]),
    )
}

/// One row.
pub fn row(layout: TableLayout, table: &BenchTable, row: &BenchRow) -> String {
    let known = |value: Option<String>| value.unwrap_or_else(|| ABSENT.to_owned());
    let mut text = format!(
        "{:12}  {:>12}  {:>8}  {:>6}  {:>6}",
        row.size_bytes,
        known(row.count.map(|count| count.to_string())),
        known(table.dtype.clone()),
        known(table.redop.clone()),
        known(table.root.map(|root| root.to_string())),
    );
    text += &match (&row.out_of_place, layout) {
        (Some(measured), _) => body(layout, measured),
        (None, TableLayout::Means) => " ".repeat(32),
        (None, TableLayout::Iterations) => " ".repeat(32 + 36),
    };
    text.extend(row.in_place.as_ref().map(|measured| body(layout, measured)));
    text + "\n"
}

fn body(layout: TableLayout, measured: &Measurement) -> String {
    let mut text = format!(
        "  {}  {}  {}",
        fixed_width(measured.time_us, 7),
        fixed_width(measured.algbw, 6),
        fixed_width(measured.busbw, 6)
    );
    match measured.wrong {
        Some(wrong) => text += &format!("  {:>6}", format_g(wrong as f64)),
        None => text += "    N/A",
    }
    if layout == TableLayout::Iterations {
        let stats = iteration_columns(&measured.call_stats.clone().unwrap_or_default());
        text.extend(stats.map(|value| format!("  {}", fixed_width(value, 7))));
    }
    text
}

/// The lines after the table of an operation.
pub fn footer(result: &BenchResult, operation: &Operation) -> String {
    let own = result.summary.clone().filter(|_| result.operations().len() == 1);
    let summary = own.unwrap_or_else(|| {
        let tables = result.tables.iter().filter(|table| table.operation == *operation);
        let (wrong, mean) = totals(tables);
        let (out_of_bounds, average_busbw) = (Some(wrong), Some(mean.unwrap_or(0.0)));
        BenchSummary { out_of_bounds, average_busbw, average_ok: None }
    });
    let wrong = summary.out_of_bounds.unwrap_or_default();
    let mean = summary.average_busbw.map_or_else(|| "N/A".to_owned(), format_g);
    let status = match summary.average_ok {
        Some(true) => "OK",
        Some(false) => "FAILED",
        None => "",
    };
    let all = if wrong == 0 { "OK" } else { "FAILED" };
    let (bounds, average) = ("Out of bounds values", "Avg bus bandwidth");
    format!(
        "# {bounds:<20} : {wrong} {all}\n# {average:<20} : {mean} {status}\n#\n\
         # Collective test concluded: {}\n#\n\n",
        program_name(operation)
    )
}

/// Wrong elements of all rows, and the mean of their bus bandwidths, if there are any.
pub fn totals<'a>(tables: impl Iterator<Item = &'a BenchTable>) -> (u64, Option<f64>) {
    let rows: Vec<&BenchRow> = tables.flat_map(|table| &table.rows).collect();
    let both = |row: &&'a BenchRow| BufferMode::ALL.map(|place| place.measurement(row));
    let wrong = rows.iter().flat_map(both).flatten().filter_map(|measured| measured.wrong);
    // Rows of 0 bytes have no bandwidth.
    let sized = rows.iter().filter(|row| row.size_bytes > 0);
    let busbw: Vec<f64> = sized.flat_map(both).flatten().filter_map(|m| m.busbw).collect();
    let mean = (!busbw.is_empty()).then(|| busbw.iter().sum::<f64>() / busbw.len() as f64);
    (wrong.fold(0, u64::saturating_add), mean)
}
