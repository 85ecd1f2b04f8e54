//! Plots in Braille characters of 2 x 4 dots.

use anstyle::Style;

use crate::axis::{multiples, range, round_step};
use crate::line::{PLAIN, StyledLine};

/// Columns of the y-axis and its labels.
const Y_AXIS_WIDTH: usize = 8;
/// Rows of the x-axis and its labels.
const X_AXIS_HEIGHT: usize = 2;
/// Rows per label of the y-axis, about.
const ROWS_PER_LABEL: f64 = 3.0;
/// Minimum columns per label of the x-axis.
const COLUMNS_PER_LABEL: usize = 12;

/// Bits of the dots of a Braille character (U+2800), by column and row.
const DOT_BITS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// Points of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a> {
    /// Points; those that are not finite are left out.
    pub points: &'a [(f64, f64)],
    /// Its style.
    pub style: Style,
    /// The character of each point; without one, a line through the means of each column of dots.
    pub marker: Option<char>,
}

/// A plot over steps from 0 on. Later layers cover earlier ones.
#[derive(Debug, Clone, Copy)]
pub struct TerminalPlot<'a> {
    /// What to plot.
    pub layers: &'a [Layer<'a>],
    /// The end of the x-axis.
    pub x_max: f64,
}

/// A character of the plot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cell {
    dots: u32,
    marker: Option<char>,
    style: Option<Style>,
}

impl TerminalPlot<'_> {
    /// Draws the plot and its axes in `width` x `height` characters. Empty without finite values.
    pub fn draw(&self, width: usize, height: usize) -> Vec<StyledLine> {
        let (columns, rows) =
            (width.saturating_sub(Y_AXIS_WIDTH), height.saturating_sub(X_AXIS_HEIGHT));
        if columns < 4 || rows < 2 {
            return Vec::new();
        }
        let layers: Vec<_> =
            self.layers.iter().map(|layer| self.in_columns(layer, 2 * columns)).collect();
        let Some((low, high)) = range(layers.iter().flatten().map(|(_, value)| *value)) else {
            return Vec::new();
        };
        let (low, high) = if high - low < 1e-6 { (low - 0.5, high + 0.5) } else { (low, high) };
        let dot_row = |value: f64| {
            let down = (high - value) / (high - low) * (4 * rows - 1) as f64;
            (down.round() as usize).min(4 * rows - 1)
        };
        let mut cells = vec![vec![Cell::default(); columns]; rows];
        for (layer, points) in self.layers.iter().zip(&layers) {
            draw_layer(&mut cells, layer, points, dot_row);
        }
        let labels = y_labels(low, high, rows, |value| dot_row(value) / 4);
        let line = |(row, label): (&Vec<Cell>, &Option<String>)| {
            let (label, axis) = label.as_ref().map_or(("", '│'), |label| (label, '┤'));
            let mut line = StyledLine::new(format!("{label:>6.6} {axis}"), PLAIN);
            line.append(cells_line(row));
            line
        };
        let axis = x_axis(self.x_max, columns).map(|line| StyledLine::new(line, PLAIN));
        cells.iter().zip(&labels).map(line).chain(axis).collect()
    }

    /// The points of a layer by column of dots: all markers, but one mean of a line.
    fn in_columns(&self, layer: &Layer<'_>, columns: usize) -> Vec<(usize, f64)> {
        let finite = layer.points.iter().filter(|(_, value)| value.is_finite());
        let places = finite.map(|(x, value)| (dot_column(*x, self.x_max, columns), *value));
        if layer.marker.is_some() {
            return places.collect();
        }
        let mut sums = vec![(0.0, 0usize); columns];
        for (column, value) in places {
            let sum = &mut sums[column];
            *sum = (sum.0 + value, sum.1 + 1);
        }
        let means = sums.into_iter().enumerate().filter(|(_, (_, count))| *count > 0);
        means.map(|(column, (sum, count))| (column, sum / count as f64)).collect()
    }
}

fn draw_layer(
    cells: &mut [Vec<Cell>],
    layer: &Layer<'_>,
    points: &[(usize, f64)],
    dot_row: impl Fn(f64) -> usize,
) {
    if layer.marker.is_some() {
        for (column, value) in points {
            let cell = &mut cells[dot_row(*value) / 4][column / 2];
            (cell.marker, cell.style) = (layer.marker, Some(layer.style));
        }
        return;
    }
    for (column, from, to) in line_segments(points, dot_row) {
        for row in from.min(to)..=from.max(to) {
            let cell = &mut cells[row / 4][column / 2];
            cell.dots |= DOT_BITS[column % 2][row % 4];
            cell.style = Some(layer.style);
        }
    }
}

/// The labels of the y-axis by row: round values, at least two rows apart.
fn y_labels(
    low: f64,
    high: f64,
    rows: usize,
    row_of: impl Fn(f64) -> usize,
) -> Vec<Option<String>> {
    let mut labels = vec![None; rows];
    let mut step = round_step((high - low) / (rows as f64 / ROWS_PER_LABEL).max(1.0));
    // At least two labels.
    while (high / step).floor() - (low / step).ceil() < 1.0 {
        step = round_step(step * 0.49);
    }
    // The decimals of the step: 0.25 needs two.
    let decimals = (0..5).find(|n| {
        let scaled = step * 10f64.powi(*n);
        (scaled - scaled.round()).abs() < 1e-6
    });
    for value in multiples(step, low, high).take(rows) {
        labels[row_of(value)] = Some(format!("{value:.*}", decimals.unwrap_or(5) as usize));
    }
    labels
}

/// The dot column of a step.
fn dot_column(step: f64, steps: f64, columns: usize) -> usize {
    ((step / steps.max(1.0) * (columns - 1) as f64).round() as usize).min(columns - 1)
}

/// `(column, first row, last row)` of the dots of a continuous line through the points, interpolated
/// over columns without any.
fn line_segments(
    points: &[(usize, f64)],
    dot_row: impl Fn(f64) -> usize,
) -> Vec<(usize, usize, usize)> {
    let first = points.first().map(|&(column, value)| (column, dot_row(value), dot_row(value)));
    let mut segments: Vec<_> = first.into_iter().collect();
    for pair in points.windows(2) {
        let ((from, a), (to, b)) = (pair[0], pair[1]);
        let mut last = dot_row(a);
        for column in from + 1..=to {
            let fraction = (column - from) as f64 / (to - from) as f64;
            let row = dot_row(a + fraction * (b - a));
            segments.push((column, last, row));
            last = row;
        }
    }
    segments
}

/// A row of characters, one span per change of style.
fn cells_line(cells: &[Cell]) -> StyledLine {
    let used = cells.iter().rposition(|cell| *cell != Cell::default()).map_or(0, |last| last + 1);
    let mut line = StyledLine::default();
    for run in cells[..used].chunk_by(|a, b| a.style == b.style) {
        let character = |cell: &Cell| match (cell.marker, cell.dots) {
            (Some(marker), _) => marker,
            (None, 0) => ' ',
            (None, dots) => char::from_u32(0x2800 + dots).unwrap_or(' '),
        };
        line.push(run.iter().map(character).collect::<String>(), run[0].style.unwrap_or(PLAIN));
    }
    line
}

/// The x-axis and its labels: round steps, and the last one.
fn x_axis(steps: f64, columns: usize) -> [String; X_AXIS_HEIGHT] {
    let last = format!("{steps:.0}");
    let label_width = (last.len() + 3).max(COLUMNS_PER_LABEL);
    // Steps are integers.
    let interval = round_step((steps * label_width as f64 / columns as f64).max(1.0));
    let interval = if interval < 10.0 { interval.ceil() } else { interval };
    let round = multiples(interval, 0.0, steps - interval * 0.7);
    let mut rule = vec!['─'; columns];
    let mut labels = " ".repeat(Y_AXIS_WIDTH);
    for step in round.chain([steps]) {
        let (column, text) = (dot_column(step, steps, 2 * columns) / 2, format!("{step:.0}"));
        rule[column] = '┬';
        // Centred below its tick, but not beyond the last column.
        let start = (Y_AXIS_WIDTH + column).saturating_sub(text.len() / 2);
        let start = start.min((Y_AXIS_WIDTH + columns).saturating_sub(text.len()));
        if start > labels.trim_end().len() || labels.trim_end().is_empty() {
            labels = format!("{labels:<start$}");
            labels.truncate(start);
            labels.push_str(&text);
        }
    }
    let rule: String = rule.into_iter().collect();
    [format!("{:>6} └{rule}", ""), labels]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(
        [line, marks]: [&[(f64, f64)]; 2],
        x_max: f64,
        width: usize,
        height: usize,
    ) -> Vec<String> {
        let line = Layer { points: line, style: PLAIN, marker: None };
        let layers = [line, Layer { points: marks, style: PLAIN, marker: Some('o') }];
        let lines = TerminalPlot { layers: &layers, x_max }.draw(width, height);
        lines.iter().map(|line| line.render(false)).collect()
    }

    #[test]
    fn decreasing_losses_are_drawn_with_axes_and_validation_markers() {
        let train: Vec<(f64, f64)> =
            (0..=60).map(|step| (f64::from(step), 4.0 / (1.0 + f64::from(step) / 10.0))).collect();
        let val = [(30.0, 1.2), (60.0, 0.7)];
        let expected = [
            "       │⢹",
            "     3 ┤⠈⢧",
            "     2 ┤ ⠘⢦⡀",
            "       │   ⠳⢤⣀o",
            "     1 ┤     ⠈⠙⠒⠲⠤⠤⣄⣀o",
            "       └┬────────────────────┬",
            "        0                  100",
        ];
        let shown = plain([&train, &val], 100.0, 30, 7);
        assert_eq!(shown, expected, "{}", shown.join("\n"));
    }

    #[test]
    fn labels_are_round_values_within_the_losses_and_steps() {
        for (low, high) in [(1.7, 4.2), (2.0, 2.01), (0.01, 11.0), (-3.0, 5.0), (1e-3, 1.1e-3)] {
            for rows in [2, 5, 20, 50] {
                let row_of =
                    |loss: f64| ((high - loss) / (high - low) * (rows - 1) as f64) as usize;
                let labels = y_labels(low, high, rows, row_of);
                let values: Vec<f64> =
                    labels.iter().flatten().map(|l| l.parse().unwrap()).collect();
                assert!(values.len() <= 1 + rows / 2, "{low} {high} {rows}: {values:?}");
                assert!(rows < 5 || values.len() >= 2, "{low} {high} {rows}: {values:?}");
                assert!(
                    values.iter().all(|v| (low - 1e-9..=high + 1e-9).contains(v)),
                    "{values:?}"
                );
                assert!(values.windows(2).all(|pair| pair[0] > pair[1]), "{values:?}");
            }
        }
        for (steps, columns) in [(1.0, 10), (3.0, 70), (600.0, 70), (600.0, 12), (1e12, 100)] {
            let [rule, labels] = x_axis(steps, columns);
            assert_eq!(rule.chars().count(), Y_AXIS_WIDTH + columns);
            assert!(labels.chars().count() <= Y_AXIS_WIDTH + columns, "{labels}");
            let values: Vec<f64> = labels.split_whitespace().map(|l| l.parse().unwrap()).collect();
            assert!(values.len() >= 2 || columns < 13, "{labels}");
            assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "{labels}");
            assert_eq!(values.last(), Some(&steps), "{labels}");
        }
    }

    #[test]
    fn sparse_points_are_interpolated_and_no_points_draw_nothing() {
        for none in [&[][..], &[(1.0, f64::NAN)]] {
            assert!(plain([none, &[]], 10.0, 80, 10).is_empty());
        }
        let two = [(0.0, 1.0), (10.0, 1.0)];
        let lines = plain([&two, &[]], 10.0, 20, 5);
        assert!(lines[1].chars().skip(8).all(|dots| dots == '⠒' || dots == '⠤'), "{lines:?}");
        assert_eq!(lines[1].chars().count(), 20);
        for (width, height) in [(0, 0), (9, 9), (12, 1), (12, 3), (300, 100)] {
            let lines = plain([&two, &[]], 10.0, width, height);
            assert!(lines.len() <= height, "{width}x{height}: {lines:?}");
            assert!(lines.iter().all(|l| l.chars().count() <= width.max(1)), "{width}: {lines:?}");
        }
    }
}
