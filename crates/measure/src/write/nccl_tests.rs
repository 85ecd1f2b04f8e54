//! The exact output format of nccl-tests 2.19, so that existing parsers work.

use std::fmt::Write as _;

use regatta_model::bench::{BenchDevice, BenchParameters, BenchSummary, SizeStep, TimeStats};
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement, Operation};

use super::format::{fixed_width, format_g};
use crate::buffer_mode::BufferMode;
use crate::read::columns::ABSENT;

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
        let measured =
            rows.flat_map(|row| BufferMode::BOTH.map(|place| place.measurement(row))).flatten();
        let mut shown = measured.filter(|m| m.call_stats.as_ref().is_some_and(has_columns));
        if shown.next().is_some() { Self::Iterations } else { Self::Means }
    }
}

fn has_columns(spread: &TimeStats) -> bool {
    [spread.min_us, spread.max_us, spread.p99_us, spread.cv_percent].iter().any(Option::is_some)
}

/// A whole result: one nccl-tests run per operation.
pub fn nccl_tests(result: &BenchResult) -> String {
    let (layout, mut text) = (TableLayout::for_result(result), String::new());
    for operation in result.operations() {
        text.push_str(&preamble(result, operation));
        text.push_str(&header(layout));
        for table in result.tables.iter().filter(|table| table.operation == *operation) {
            for one in &table.rows {
                text.push_str(&row(layout, table, one));
            }
        }
        if result.complete {
            text.push_str(&footer(result, operation));
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
        other => format!("{}_perf", other.name().replace('-', "_")),
    }
}

/// The lines before the table.
pub fn preamble(result: &BenchResult, operation: &Operation) -> String {
    let mut text = String::new();
    let version = |name: &str| result.versions.get(name).map(String::as_str);
    let all = (version("nccl-tests"), version("nccl-headers"), version("nccl-library"));
    if let (Some(own), Some(headers), Some(library)) = all {
        add(
            &mut text,
            format_args!(
                "# nccl-tests version {own} nccl-headers={headers} nccl-library={library}\n"
            ),
        );
    }
    if let Some(own) = version("regatta") {
        add(&mut text, format_args!("# regatta version {own}\n"));
    }
    add(&mut text, format_args!("# Collective test starting: {}\n", program_name(operation)));
    if let Some(parameters) = &result.parameters {
        text.push_str(&parameters_line(parameters));
    }
    for note in result.notes.iter().filter(|note| note.starts_with('#')) {
        add(&mut text, format_args!("{note}\n"));
    }
    text.push_str("#\n# Using devices\n");
    result.devices.iter().for_each(|one| text.push_str(&device(one)));
    let libraries =
        [("rccl-tests", "rccl-tests: Version"), ("nccl", "NCCL version"), ("rccl", "RCCL version")];
    for (name, words) in libraries {
        if let Some(version) = version(name) {
            add(&mut text, format_args!("{words} {version}\n"));
        }
    }
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
    let mut option = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            add(&mut text, format_args!(" {name}: {value}"));
        }
    };
    option("agg iters", parameters.agg_iters);
    option("validation", Some(*check));
    option("graph", parameters.graph);
    option("unalign", parameters.unalign);
    text.push('\n');
    text
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
    match (&row.out_of_place, layout) {
        (Some(measured), _) => text.push_str(&body(layout, measured)),
        (None, TableLayout::Means) => text.push_str(&" ".repeat(32)),
        (None, TableLayout::Iterations) => text.push_str(&" ".repeat(32 + 36)),
    }
    if let Some(measured) = &row.in_place {
        text.push_str(&body(layout, measured));
    }
    text.push('\n');
    text
}

fn body(layout: TableLayout, measured: &Measurement) -> String {
    let mut text = format!(
        "  {}  {}  {}",
        fixed_width(measured.time_us, 7),
        fixed_width(measured.algbw, 6),
        fixed_width(measured.busbw, 6)
    );
    match measured.wrong {
        Some(wrong) => add(&mut text, format_args!("  {:>6}", format_g(wrong as f64))),
        None => text.push_str("    N/A"),
    }
    if layout == TableLayout::Iterations {
        let spread = measured.call_stats.clone().unwrap_or_default();
        for value in [spread.min_us, spread.max_us, spread.p99_us, spread.cv_percent] {
            add(&mut text, format_args!("  {}", fixed_width(value, 7)));
        }
    }
    text
}

/// The lines after the table of an operation.
pub fn footer(result: &BenchResult, operation: &Operation) -> String {
    let own = result.summary.clone().filter(|_| result.operations().len() == 1);
    let summary = own.unwrap_or_else(|| summarize(result, operation));
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

/// Summary of an operation, computed from its rows.
fn summarize<'a>(result: &'a BenchResult, operation: &Operation) -> BenchSummary {
    let tables = result.tables.iter().filter(|table| table.operation == *operation);
    let rows: Vec<&BenchRow> = tables.flat_map(|table| &table.rows).collect();
    let both = |row: &&'a BenchRow| BufferMode::BOTH.map(|place| place.measurement(row));
    let wrong = rows.iter().flat_map(both).flatten().filter_map(|measured| measured.wrong);
    // Rows of 0 bytes have no bandwidth.
    let sized = rows.iter().filter(|row| row.size_bytes > 0);
    let busbw: Vec<f64> = sized.flat_map(both).flatten().filter_map(|m| m.busbw).collect();
    BenchSummary {
        out_of_bounds: Some(wrong.fold(0, u64::saturating_add)),
        average_busbw: Some(busbw.iter().sum::<f64>() / busbw.len().max(1) as f64),
        average_ok: None,
    }
}

/// Writing to a string is infallible.
fn add(text: &mut String, words: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(words);
}
