//! One panel of a plot: axes and one line per result.

use std::collections::BTreeMap;

use regatta_model::text::escape_xml;
use regatta_model::units::format_bytes;

use super::axis::PlotAxis;
use crate::metric::Metric;

/// Position and size of a panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

/// One result's values by size.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub label: String,
    pub values: BTreeMap<u64, f64>,
}

/// Marker shapes, in addition to colours.
const SHAPES: usize = 4;
/// Number of colours.
pub(super) const PALETTE_SIZE: usize = 8;

/// Draws a panel.
pub(super) fn draw(frame: Frame, metric: Metric, all: &[Series]) -> String {
    let sizes = all.iter().flat_map(|series| series.values.keys().map(|size| *size as f64));
    let values = || all.iter().flat_map(|series| series.values.values().copied());
    let x = PlotAxis::log(2.0, sizes.map(|size| size.max(1.0)));
    let y = match metric.is_bandwidth() {
        true => PlotAxis::from_zero(values()),
        false => PlotAxis::log(10.0, values()),
    };
    let mut text = String::from("<g>\n");
    text.push_str(&grid(frame, x, y, metric));
    for (index, series) in all.iter().enumerate().filter(|(_, s)| !s.values.is_empty()) {
        text.push_str(&line(frame, x, y, metric, index, series));
    }
    text.push_str("</g>\n");
    text
}

fn x_of(frame: Frame, x: PlotAxis, size: f64) -> f64 {
    frame.left + x.position(size) * frame.width
}

fn y_of(frame: Frame, y: PlotAxis, value: f64) -> f64 {
    frame.top + (1.0 - y.position(value)) * frame.height
}

fn grid(frame: Frame, x: PlotAxis, y: PlotAxis, metric: Metric) -> String {
    let Frame { left, top, width, height } = frame;
    let (right, bottom) = (left + width, top + height);
    let name = if metric.is_bandwidth() { metric.name() } else { "time" };
    let mut text =
        format!("<text class=\"name\" x=\"{left}\" y=\"{:.1}\">{name}</text>\n", top - 10.0);
    for tick in y.ticks() {
        let at = y_of(frame, y, tick);
        let label = if metric.is_bandwidth() { plain(tick) } else { time(tick) };
        let end = left - 8.0;
        text.push_str(&format!(
            "<path class=\"grid\" d=\"M{left:.1} {at:.1}H{right:.1}\"/>\
             <text class=\"tick\" x=\"{end:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
            at + 4.0
        ));
    }
    for tick in x.ticks() {
        let at = x_of(frame, x, tick);
        let label = format_bytes(tick as u64);
        text.push_str(&format!(
            "<path class=\"grid\" d=\"M{at:.1} {top:.1}V{bottom:.1}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>\n",
            bottom + 18.0
        ));
    }
    text
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

fn line(
    frame: Frame,
    x: PlotAxis,
    y: PlotAxis,
    metric: Metric,
    index: usize,
    series: &Series,
) -> String {
    let place = |(size, value): (&u64, &f64)| {
        (x_of(frame, x, (*size as f64).max(1.0)), y_of(frame, y, *value))
    };
    let points: Vec<String> =
        series.values.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let colour = index % PALETTE_SIZE;
    let mut text =
        format!("<polyline class=\"line c{colour}\" points=\"{}\"/>\n", points.join(" "));
    for (size, value) in &series.values {
        let (x, y) = place((size, value));
        let (label, unit) = (escape_xml(&series.label), metric.unit());
        text.push_str(&format!(
            "<path class=\"mark c{colour}\" d=\"{}\"><title>{label}: {}, {} {unit}</title></path>\n",
            mark(index, x, y),
            format_bytes(*size),
            plain(*value)
        ));
    }
    text
}

/// Marker of a result's points.
pub(super) fn mark(index: usize, x: f64, y: f64) -> String {
    match index % SHAPES {
        0 => format!("M{:.1} {y:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z", x - 3.5),
        1 => format!("M{:.1} {:.1}h6v6h-6Z", x - 3.0, y - 3.0),
        2 => format!("M{x:.1} {:.1}l4 7h-8Z", y - 4.0),
        _ => format!("M{x:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z", y - 4.5),
    }
}
