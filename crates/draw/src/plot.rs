//! Plots in SVG: lines over an axis, and bars.

use crate::axis::PlotAxis;
use crate::svg::{Rect, Svg, round, series_class};

/// Marker shapes, in addition to colours.
const SHAPES: usize = 4;
/// Most bars with a label below.
const MAX_LABELS: usize = 14;

/// Points of one line.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub label: String,
    /// Points, in the order of the line.
    pub points: Vec<(f64, f64)>,
}

/// Text of a tick.
pub type TickLabel = fn(f64) -> String;

/// Lines over two axes.
pub struct LinePlot<'a> {
    /// Name above the plot.
    pub title: &'a str,
    /// The axes.
    pub axes: (PlotAxis, PlotAxis),
    /// Text of a tick of each axis.
    pub tick_labels: (TickLabel, TickLabel),
    /// The lines. Empty ones keep their colour.
    pub series: &'a [Series],
    /// Tooltip of a point, after the label of its line.
    pub tip: &'a dyn Fn(f64, f64) -> String,
}

impl LinePlot<'_> {
    /// Draws grid and lines into `area`; labels of ticks are to the left and below.
    pub fn draw(&self, svg: &mut Svg, area: Rect) {
        let (x_axis, y_axis) = self.axes;
        let x_of = |value: f64| area.x + x_axis.position(value) * area.w;
        let y_of = |value: f64| area.y + (1.0 - y_axis.position(value)) * area.h;
        svg.text((area.x, area.y - 10.0), "h2", self.title);
        let (left, right, bottom) = (round(area.x), round(area.x + area.w), area.y + area.h);
        for tick in y_axis.ticks() {
            let y = y_of(tick);
            svg.path(&format!("M{left} {}H{right}", round(y)), "grid", "");
            svg.text((area.x - 8.0, y + 4.0), "small end", &(self.tick_labels.1)(tick));
        }
        for tick in x_axis.ticks() {
            let x = x_of(tick);
            svg.path(&format!("M{} {}V{}", round(x), round(area.y), round(bottom)), "grid", "");
            svg.text((x, bottom + 18.0), "small mid", &(self.tick_labels.0)(tick));
        }
        let shown = self.series.iter().enumerate().filter(|(_, series)| !series.points.is_empty());
        for (index, series) in shown {
            let place = |(x, y): &(f64, f64)| (x_of(*x), y_of(*y));
            let class = format!("line {}", series_class(index));
            svg.polyline(series.points.iter().map(place), &class);
            for point in &series.points {
                let tip = format!("{}: {}", series.label, (self.tip)(point.0, point.1));
                mark(svg, index, place(point), &tip);
            }
        }
    }
}

/// Draws the marker of a series.
pub fn mark(svg: &mut Svg, index: usize, (x, y): (f64, f64), tip: &str) {
    let (left, top, x, y) = (|d: f64| round(x - d), |d: f64| round(y - d), round(x), round(y));
    let data = match index % SHAPES {
        0 => format!("M{} {y}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z", left(3.5)),
        1 => format!("M{} {}h6v6h-6Z", left(3.0), top(3.0)),
        2 => format!("M{x} {}l4 7h-8Z", top(4.0)),
        _ => format!("M{x} {}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z", top(4.5)),
    };
    svg.path(&data, &format!("mark {}", series_class(index)), tip);
}

/// A bar of a bar plot.
#[derive(Debug, Clone)]
pub struct Bar {
    /// Label below.
    pub label: String,
    /// Height; the highest bar fills the plot.
    pub value: f64,
    /// The value as text, for the tooltip.
    pub text: String,
}

/// Draws bars into `area` in the colour of a series, with turned labels below.
pub fn bars(svg: &mut Svg, area: Rect, colour: usize, bars: &[Bar]) {
    let max = bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let slot = area.w / bars.len().max(1) as f64;
    let every = bars.len().div_ceil(MAX_LABELS).max(1);
    let (bottom, class) = (area.y + area.h, format!("bar {}", series_class(colour)));
    for (n, bar) in bars.iter().enumerate() {
        let h = (bar.value / max * area.h).clamp(0.0, area.h);
        let x = area.x + slot * n as f64;
        let rect = Rect { x: x + slot * 0.1, y: bottom - h, w: slot * 0.8, h };
        svg.tile(rect, &class, &format!("{}: {}", bar.label, bar.text));
        if n % every == 0 {
            let at = (x + slot / 2.0 + 4.0, bottom + 10.0);
            svg.text_rotated(at, -60.0, "small end", &bar.label);
        }
    }
    svg.path(&format!("M{} {}h{}", round(area.x), round(bottom), round(area.w)), "grid", "");
}
