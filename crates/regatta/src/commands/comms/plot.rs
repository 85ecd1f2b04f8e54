//! The message-size histogram as bars: calls, time and bus bandwidth per size, as SVG or as an HTML page.

use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_model::text::escape_xml;
use regatta_model::units::{format_bytes, format_si, format_time};
use regatta_observe::comms::CommsReport;
use regatta_observe::comms::report::SizeRow;

use crate::cli::FAINT;
use crate::draw::text::sanitize;
use crate::output;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 20.0;
/// Three panels beside each other.
const PANEL_WIDTH: f64 = 290.0;
const PANEL_GAP: f64 = 20.0;
const BAR_HEIGHT: f64 = 150.0;
/// Height of an operation: heading, panel titles, bars, sizes.
const GROUP_HEIGHT: f64 = 290.0;
const TOP: f64 = 50.0;
/// Most sizes with a label on an axis.
const MAX_LABELS: usize = 14;

/// Style sheet for light and dark mode.
const STYLE: &str = "\
.regatta-comms{font:12px system-ui,sans-serif}.regatta-comms text{fill:#222}\
.regatta-comms .paper{fill:#fff}.regatta-comms .title{font-size:18px;font-weight:600}\
.regatta-comms .name{font-size:14px;font-weight:600}.regatta-comms .axis{stroke:#999}\
.regatta-comms .size{font-size:10px}\
.regatta-comms .b0{fill:#0068b5}.regatta-comms .b1{fill:#c8500a}.regatta-comms .b2{fill:#00795a}\
@media (prefers-color-scheme:dark){.regatta-comms text{fill:#e6e6e6}.regatta-comms .paper{fill:#161616}\
.regatta-comms .b0{fill:#5fb0ff}.regatta-comms .b1{fill:#ff9d5c}.regatta-comms .b2{fill:#3fd1a5}}";

/// Checks the file extension.
pub fn check(path: &Path) -> Result<()> {
    match extension(path) {
        "svg" | "html" => Ok(()),
        _ => bail!("--plot {}: the file extension must be .svg or .html", path.display()),
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Draws the histogram; the file extension selects the format.
pub fn draw(path: &Path, report: &CommsReport) -> Result<()> {
    let text = match extension(path) {
        "html" => html(report),
        _ => svg(report),
    };
    output::write_file(path, &text).context("--plot")?;
    output::eprint(&format!("{FAINT}plot: {}{FAINT:#}\n", path.display()));
    Ok(())
}

fn html(report: &CommsReport) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>regatta comms</title>\n<style>:root{{color-scheme:light dark}}\
         body{{margin:1rem auto;max-width:64rem}}svg{{width:100%;height:auto}}</style>\n\
         </head>\n<body>\n{}</body>\n</html>\n",
        svg(report)
    )
}

/// One plot with three panels per operation and communicator size.
fn svg(report: &CommsReport) -> String {
    let same = |a: &SizeRow, b: &SizeRow| (&a.operation, a.ranks) == (&b.operation, b.ranks);
    let groups: Vec<&[SizeRow]> = report.histogram.chunk_by(same).collect();
    let height = TOP + GROUP_HEIGHT * groups.len() as f64;
    let drawn = groups.iter().enumerate();
    let drawn: String = drawn.map(|(n, rows)| group(rows, TOP + GROUP_HEIGHT * n as f64)).collect();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"regatta-comms\" role=\"img\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n<title>Message sizes</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"30\">Message sizes: calls, time, bus bandwidth</text>\n\
         {drawn}</svg>\n"
    )
}

fn group(rows: &[SizeRow], top: f64) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let ranks = first.ranks.map(|ranks| format!(", {ranks} ranks")).unwrap_or_default();
    let name = escape_xml(&sanitize(&format!("{}{ranks}", first.operation)));
    let values = |value: fn(&SizeRow) -> f64| rows.iter().map(value).collect::<Vec<f64>>();
    let panels: [(&str, Vec<f64>, fn(f64) -> String); 3] = [
        ("calls", values(|row| row.calls as f64), format_si),
        ("time", values(|row| row.time_s), format_time),
        ("busbw", values(|row| row.busbw_gb_s.unwrap_or(0.0)), |value| format!("{value:.2} GB/s")),
    ];
    let mut text =
        format!("<text class=\"name\" x=\"{LEFT}\" y=\"{:.1}\">{name}</text>\n", top + 16.0);
    for (n, (title, values, format)) in panels.into_iter().enumerate() {
        let x = LEFT + (PANEL_WIDTH + PANEL_GAP) * n as f64;
        let max = values.iter().copied().fold(0.0, f64::max);
        text += &format!(
            "<text x=\"{x:.1}\" y=\"{:.1}\">{title}, up to {}</text>\n",
            top + 38.0,
            escape_xml(&format(max))
        );
        text += &bars(rows, &values, format, (x, top + 48.0), n);
    }
    text
}

/// Bars with the exact values as tooltips, and the sizes below.
fn bars(
    rows: &[SizeRow],
    values: &[f64],
    format: fn(f64) -> String,
    (left, top): (f64, f64),
    colour: usize,
) -> String {
    let max = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let slot = PANEL_WIDTH / rows.len().max(1) as f64;
    let every = rows.len().div_ceil(MAX_LABELS).max(1);
    let bottom = top + BAR_HEIGHT;
    let mut text = String::new();
    for (n, (row, &value)) in rows.iter().zip(values).enumerate() {
        let height = (value / max * BAR_HEIGHT).clamp(0.0, BAR_HEIGHT);
        let x = left + slot * n as f64;
        let size = format_bytes(row.size_bytes) + if row.size_bucket { "+" } else { "" };
        text += &format!(
            "<rect class=\"b{colour}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\">\
             <title>{size}: {}</title></rect>\n",
            x + slot * 0.1,
            bottom - height,
            slot * 0.8,
            escape_xml(&format(value)),
        );
        if n % every == 0 {
            let (x, y) = (x + slot / 2.0 + 4.0, bottom + 10.0);
            text += &format!(
                "<text class=\"size\" text-anchor=\"end\" transform=\"translate({x:.1} {y:.1}) \
                 rotate(-60)\">{size}</text>\n"
            );
        }
    }
    text + &format!("<path class=\"axis\" d=\"M{left:.1} {bottom:.1}h{PANEL_WIDTH}\"/>\n")
}
