//! CSV: one record per size and buffer mode.

use std::fmt::Display;

use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement};

use crate::buffer_mode::BufferMode;

/// The column names, in order.
pub const HEADER: &str = "label,program,backend,ranks,nodes,operation,type,redop,root,size_bytes,\
                          count,place,time_us,algbw_gb_s,busbw_gb_s,wrong,error,iterations,min_us,\
                          p50_us,p90_us,p95_us,p99_us,max_us,cv_percent";

/// The tables of all results.
pub fn csv(results: &[BenchResult]) -> String {
    let mut text = format!("{HEADER}\n");
    for result in results {
        for table in &result.tables {
            for row in &table.rows {
                for place in BufferMode::BOTH {
                    if let Some(measured) = place.measurement(row) {
                        let cells = cells(result, table, row, place, measured);
                        text += &format!("{}\n", cells.map(|cell| quoted(&cell)).join(","));
                    }
                }
            }
        }
    }
    text
}

fn cells(
    result: &BenchResult,
    table: &BenchTable,
    row: &BenchRow,
    place: BufferMode,
    measured: &Measurement,
) -> [String; 25] {
    let spread = measured.call_stats.clone().unwrap_or_default();
    [
        result.label.clone(),
        result.program.name().to_owned(),
        known(&result.backend),
        known(&result.shape.ranks),
        known(&result.shape.nodes),
        table.operation.to_string(),
        known(&table.dtype),
        known(&table.redop),
        known(&table.root),
        row.size_bytes.to_string(),
        known(&row.count),
        place.to_string(),
        known(&measured.time_us),
        known(&measured.algbw),
        known(&measured.busbw),
        known(&measured.wrong),
        known(&measured.error),
        known(&measured.iterations),
        known(&spread.min_us),
        known(&spread.p50_us),
        known(&spread.p90_us),
        known(&spread.p95_us),
        known(&spread.p99_us),
        known(&spread.max_us),
        known(&spread.cv_percent),
    ]
}

fn known(value: &Option<impl Display>) -> String {
    value.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Quotes a cell if necessary.
pub(crate) fn quoted(cell: &str) -> String {
    if !cell.contains([',', '"', '\n', '\r']) {
        return cell.to_owned();
    }
    format!("\"{}\"", cell.replace('"', "\"\""))
}
