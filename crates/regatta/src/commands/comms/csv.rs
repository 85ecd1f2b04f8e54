//! The message-size histogram as CSV.

use std::fmt::Display;

use regatta_measure::write;
use regatta_observe::comms::CommsReport;
use regatta_observe::comms::report::{SizeRow, VariantRow};

const HEADER: &str = "operation,ranks,size_bytes,size_bucket,max_size_bytes,calls,collectives,bytes,time_s,\
                      time_share,mean_us,p50_us,p99_us,max_us,algbw_gb_s,busbw_gb_s,transfer_us,\
                      transfer_algbw_gb_s,transfer_busbw_gb_s,variants";

/// All rows. Names of libraries cannot break a line or a cell.
pub fn csv(report: &CommsReport) -> String {
    let lines = report.histogram.iter().map(|row| cells(row).join(",") + "\n");
    format!("{HEADER}\n{}", lines.collect::<String>())
}

fn cells(row: &SizeRow) -> Vec<String> {
    let transfer = row.transfer.as_ref();
    let variants: Vec<String> = row.variants.iter().map(variant).collect();
    vec![
        quoted(&row.operation),
        known(row.ranks),
        row.size_bytes.to_string(),
        row.size_bucket.to_string(),
        row.max_size_bytes.to_string(),
        row.calls.to_string(),
        known(row.collectives),
        row.bytes.to_string(),
        row.time_s.to_string(),
        known(row.time_share),
        known(row.mean_us),
        known(row.median_us),
        known(row.p99_us),
        known(row.max_us),
        known(row.algbw_gb_s),
        known(row.busbw_gb_s),
        known(transfer.map(|transfer| transfer.mean_us)),
        known(transfer.and_then(|transfer| transfer.algbw_gb_s)),
        known(transfer.and_then(|transfer| transfer.busbw_gb_s)),
        quoted(&variants.join(" ")),
    ]
}

/// `bf16/ring/simple:1200`.
fn variant(row: &VariantRow) -> String {
    let names = [&row.dtype, &row.algorithm, &row.protocol];
    let names: Vec<&str> =
        names.into_iter().map(String::as_str).filter(|n| !n.is_empty()).collect();
    format!("{}:{}", names.join("/"), row.calls)
}

fn known(value: Option<impl Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn quoted(text: &str) -> String {
    write::quoted(text.replace(char::is_control, "?"))
}
