//! The message-size histogram as bars: calls, time and bus bandwidth per size, as SVG or as an HTML page.

use regatta_draw::html::Page;
use regatta_draw::plot::{self, Bar};
use regatta_draw::svg::{Document, Rect, Svg};
use regatta_model::units::{format_bytes, format_si, format_time};

use crate::comms::CommsReport;
use crate::comms::report::SizeRow;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 20.0;
/// Three panels beside each other.
const PANEL_WIDTH: f64 = 290.0;
const PANEL_GAP: f64 = 20.0;
const BAR_HEIGHT: f64 = 150.0;
/// Height of an operation: heading, panel titles, bars, sizes.
const GROUP_HEIGHT: f64 = 290.0;
const TOP: f64 = 50.0;

/// A figure of each size.
struct Panel {
    title: &'static str,
    value: fn(&SizeRow) -> f64,
    format: fn(f64) -> String,
}

const PANELS: [Panel; 3] = [
    Panel { title: "calls", value: |row| row.calls as f64, format: format_si },
    Panel { title: "time", value: |row| row.time_s, format: format_time },
    Panel {
        title: "bus bandwidth",
        value: |row| row.busbw_gb_s.unwrap_or(0.0),
        format: |value| format!("{value:.2} GB/s"),
    },
];

/// The histogram as a page.
pub fn html(report: &CommsReport) -> String {
    let mut page = Page::new("regatta comms");
    page.drawing(&svg(report));
    page.finish()
}

/// One plot with three panels per operation and communicator size.
pub fn svg(report: &CommsReport) -> String {
    let mut svg = Svg::default();
    let title = "Message sizes: calls, time, bus bandwidth";
    svg.text((LEFT, 30.0), "h1", title);
    let same = |a: &SizeRow, b: &SizeRow| (&a.operation, a.ranks) == (&b.operation, b.ranks);
    let mut top = TOP;
    for rows in report.histogram.chunk_by(same) {
        draw_operation(&mut svg, rows, top);
        top += GROUP_HEIGHT;
    }
    svg.finish(&Document {
        id: "message-sizes",
        title: "Message sizes",
        description: title,
        size: (WIDTH, top),
        font_size: 12.0,
        background: "paper",
    })
}

/// Bars with the exact values as tooltips, and the sizes below.
fn draw_operation(svg: &mut Svg, rows: &[SizeRow], top: f64) {
    let Some(first) = rows.first() else { return };
    let ranks = first.ranks.map(|ranks| format!(", {ranks} ranks")).unwrap_or_default();
    svg.text((LEFT, top + 16.0), "h2", &format!("{}{ranks}", first.operation));
    for (n, panel) in PANELS.iter().enumerate() {
        let x = LEFT + (PANEL_WIDTH + PANEL_GAP) * n as f64;
        let max = rows.iter().map(panel.value).fold(0.0, f64::max);
        let heading = format!("{}, up to {}", panel.title, (panel.format)(max));
        svg.text((x, top + 38.0), "", &heading);
        let bar = |row: &SizeRow| {
            let value = (panel.value)(row);
            let label = format_bytes(row.size_bytes) + if row.size_bucket { "+" } else { "" };
            Bar { label, value, text: (panel.format)(value) }
        };
        let area = Rect { x, y: top + 48.0, w: PANEL_WIDTH, h: BAR_HEIGHT };
        plot::bars(svg, area, n, &rows.iter().map(bar).collect::<Vec<_>>());
    }
}
