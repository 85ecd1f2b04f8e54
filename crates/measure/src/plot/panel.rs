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
    let y = if metric.is_bandwidth() {
        PlotAxis::from_zero(values())
    } else {
        PlotAxis::log(10.0, values())
    };
    let panel = Panel { frame, x, y, metric };
    let series = all.iter().enumerate().filter(|(_, series)| !series.values.is_empty());
    let lines: String = series.map(|(index, series)| panel.line(index, series)).collect();
    format!("<g>\n{}{lines}</g>\n", panel.grid())
}

struct Panel {
    frame: Frame,
    x: PlotAxis,
    y: PlotAxis,
    metric: Metric,
}

impl Panel {
    fn x_of(&self, size: f64) -> f64 {
        self.frame.left + self.x.position(size) * self.frame.width
    }

    fn y_of(&self, value: f64) -> f64 {
        self.frame.top + (1.0 - self.y.position(value)) * self.frame.height
    }

    fn grid(&self) -> String {
        let (Frame { left, top, width, height }, metric) = (self.frame, self.metric);
        let (right, bottom) = (left + width, top + height);
        let name = if metric.is_bandwidth() { metric.name() } else { "time" };
        let (above, below, end) = (top - 10.0, bottom + 18.0, left - 8.0);
        let mut text =
            format!("<text class=\"name\" x=\"{left}\" y=\"{above:.1}\">{name}</text>\n");
        for tick in self.y.ticks() {
            let label = if metric.is_bandwidth() { plain(tick) } else { time(tick) };
            let at = self.y_of(tick);
            text += &format!(
                "<path class=\"grid\" d=\"M{left:.1} {at:.1}H{right:.1}\"/><text class=\"tick\" \
                 x=\"{end:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
                at + 4.0
            );
        }
        for tick in self.x.ticks() {
            let (at, label) = (self.x_of(tick), format_bytes(tick as u64));
            text += &format!(
                "<path class=\"grid\" d=\"M{at:.1} {top:.1}V{bottom:.1}\"/><text class=\"tick\" \
                 x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{label}</text>\n"
            );
        }
        text
    }

    fn line(&self, index: usize, series: &Series) -> String {
        let (colour, unit) = (index % PALETTE_SIZE, self.metric.unit());
        let label = escape_xml(&series.label);
        let (mut points, mut marks) = (Vec::new(), String::new());
        for (size, value) in &series.values {
            let (x, y) = (self.x_of((*size as f64).max(1.0)), self.y_of(*value));
            points.push(format!("{x:.1},{y:.1}"));
            let (mark, size, value) = (mark(index, x, y), format_bytes(*size), plain(*value));
            let title = format!("<title>{label}: {size}, {value} {unit}</title>");
            marks += &format!("<path class=\"mark c{colour}\" d=\"{mark}\">{title}</path>\n");
        }
        let points = points.join(" ");
        format!("<polyline class=\"line c{colour}\" points=\"{points}\"/>\n{marks}")
    }
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

/// Marker of a result's points.
pub(super) fn mark(index: usize, x: f64, y: f64) -> String {
    match index % SHAPES {
        0 => format!("M{:.1} {y:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z", x - 3.5),
        1 => format!("M{:.1} {:.1}h6v6h-6Z", x - 3.0, y - 3.0),
        2 => format!("M{x:.1} {:.1}l4 7h-8Z", y - 4.0),
        _ => format!("M{x:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z", y - 4.5),
    }
}
