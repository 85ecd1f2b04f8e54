//! Plots of bandwidth and time over size, as SVG, or as an HTML page with tables.
//!
//! A plot is self-contained and adapts to light and dark mode.

mod html;

use regatta_draw::axis::PlotAxis;
use regatta_draw::legend::{Symbol, legend};
use regatta_draw::plot::{LinePlot, Series, TickLabel};
use regatta_draw::svg::{Document, Rect, Svg};
use regatta_model::units::format_bytes;
use regatta_model::{BenchResult, Operation};

use crate::buffer_mode::BufferMode;
use crate::compare::by_size;
use crate::metric::Metric;

pub use html::{html, operations};

/// Width of a plot and of its panels.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 80.0;
const PANEL_WIDTH: f64 = 790.0;
const PANEL_HEIGHT: f64 = 260.0;
/// Baseline of the title and top of the legend.
const TITLE: f64 = 34.0;
const LEGEND: f64 = 46.0;
const FONT_SIZE: f64 = 13.0;
/// Space above and below a panel.
const ABOVE: f64 = 34.0;
const BELOW: f64 = 34.0;

/// Plots an operation of several results: a bandwidth panel and a time panel, one line per result,
/// out of place if all rows have it, else in place, unless a mode is requested. `None` if there are
/// no values.
pub fn svg(
    results: &[BenchResult],
    operation: &Operation,
    place: Option<BufferMode>,
) -> Option<String> {
    let bandwidth = match Metric::default_for(operation) {
        Metric::Time => Metric::BusBandwidth,
        metric => metric,
    };
    let place = place.unwrap_or_else(|| common_mode(results, operation));
    let metrics = [bandwidth, Metric::Time];
    let panels: Vec<(Metric, Vec<Series>)> = metrics
        .into_iter()
        .map(|metric| (metric, series_of(results, operation, metric, place)))
        .filter(|(_, all)| all.iter().any(|series| !series.points.is_empty()))
        .collect();
    (!panels.is_empty()).then(|| drawing(operation, place, &panels))
}

/// Out of place if all rows have it, else in place.
fn common_mode(results: &[BenchResult], operation: &Operation) -> BufferMode {
    let tables = results.iter().flat_map(|result| &result.tables);
    let mut rows = tables.filter(|table| table.operation == *operation).flat_map(|t| &t.rows);
    let out_of_place = rows.all(|row| row.out_of_place.is_some());
    if out_of_place { BufferMode::OutOfPlace } else { BufferMode::InPlace }
}

/// One series per table of the operation; the label names the type if a result has several.
fn series_of(
    results: &[BenchResult],
    operation: &Operation,
    metric: Metric,
    place: BufferMode,
) -> Vec<Series> {
    let mut all = Vec::new();
    for result in results {
        let tables = || result.tables.iter().filter(|table| table.operation == *operation);
        let several = tables().count() > 1;
        for table in tables() {
            let kind = [&table.dtype, &table.redop].into_iter().flatten().cloned();
            let kind = several.then(|| format!(" ({})", kind.collect::<Vec<_>>().join(" ")));
            let label = result.label.clone() + &kind.unwrap_or_default();
            // A size of zero is drawn where one byte is.
            let points = by_size(result, table, metric, place).into_iter();
            let points = points.map(|(size, value)| (size as f64, value)).collect();
            all.push(Series { label, points });
        }
    }
    all
}

fn drawing(operation: &Operation, place: BufferMode, panels: &[(Metric, Vec<Series>)]) -> String {
    let (title, mut svg) = (format!("{operation}, {place}, by size"), Svg::default());
    svg.text((LEFT, TITLE), "h1", &title);
    let series = panels.first().into_iter().flat_map(|(_, all)| all);
    let names: Vec<String> = series.map(|series| series.label.clone()).collect();
    let lines = names.iter().cloned().enumerate().map(|(index, name)| (Symbol::Line(index), name));
    let area = Rect { x: LEFT, y: LEGEND, w: PANEL_WIDTH, h: 0.0 };
    let mut y = legend(&mut svg, area, FONT_SIZE, &lines.collect::<Vec<_>>());
    for (metric, all) in panels {
        let area = Rect { x: LEFT, y: y + ABOVE, w: PANEL_WIDTH, h: PANEL_HEIGHT };
        draw_panel(&mut svg, area, *metric, all);
        y = area.y + PANEL_HEIGHT + BELOW;
    }
    svg.finish(&Document {
        id: &identifier(operation),
        title: &title,
        description: &format!("Lines of {}.", names.join("; ")),
        size: (WIDTH, y),
        font_size: FONT_SIZE,
        background: "paper",
    })
}

/// One metric over the message size.
fn draw_panel(svg: &mut Svg, area: Rect, metric: Metric, all: &[Series]) {
    let points = || all.iter().flat_map(|series| &series.points);
    let (sizes, values) = (points().map(|(size, _)| size.max(1.0)), points().map(|(_, y)| *y));
    let (title, y_axis, y_label): (_, _, TickLabel) = match metric {
        Metric::Time => ("time", PlotAxis::log(10.0, values), time),
        _ => (metric.name(), PlotAxis::from_zero(values), plain),
    };
    let bytes: TickLabel = |size| format_bytes(size as u64);
    let plot = LinePlot {
        title,
        axes: (PlotAxis::log(2.0, sizes), y_axis),
        tick_labels: (bytes, y_label),
        series: all,
        tip: &|size, value| format!("{}, {} {}", bytes(size), plain(value), metric.unit()),
    };
    plot.draw(svg, area);
}

/// A time with a suitable unit.
fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", plain(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", plain(us / 1e3)),
        us => format!("{} µs", plain(us)),
    }
}

/// A number without trailing zeros.
fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An identifier unique to the operation.
fn identifier(operation: &Operation) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("plot-{}", operation.to_string().chars().map(letter).collect::<String>())
}
