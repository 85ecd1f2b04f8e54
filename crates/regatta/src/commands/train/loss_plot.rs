//! Plot of the loss in Braille characters of 2 x 4 dots. No I/O.

use anstyle::{AnsiColor, Style};

/// Style of training losses.
const TRAIN_STYLE: Style = AnsiColor::Cyan.on_default();
/// Style of validation losses.
const VAL_STYLE: Style = AnsiColor::Yellow.on_default().bold();
/// Marker of a validation loss.
pub const VAL_MARKER: char = 'o';
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

/// Points `(step, loss)` to plot.
pub struct LossPlot<'a> {
    /// Training losses, drawn as a line.
    pub train: &'a [(f64, f64)],
    /// Validation losses, drawn as markers.
    pub val: &'a [(f64, f64)],
    /// Total steps: the end of the x-axis.
    pub steps: f64,
}

/// Draws the plot and its axes in `width` x `height` characters. Empty without finite losses.
pub fn draw(plot: &LossPlot<'_>, width: usize, height: usize) -> Vec<String> {
    let (columns, rows) =
        (width.saturating_sub(Y_AXIS_WIDTH), height.saturating_sub(X_AXIS_HEIGHT));
    if columns < 4 || rows < 2 {
        return Vec::new();
    }
    let train = column_means(plot.train, plot.steps, 2 * columns);
    let val = plot.val.iter().filter(|(_, loss)| loss.is_finite());
    let val = val.map(|(step, loss)| (dot_column(*step, plot.steps, 2 * columns), *loss));
    let val: Vec<(usize, f64)> = val.collect();
    let all = train.iter().flatten().copied().chain(val.iter().map(|(_, loss)| *loss));
    let Some((low, high)) = range(all) else { return Vec::new() };
    let dot_row = |loss: f64| {
        let down = (high - loss) / (high - low) * (4 * rows - 1) as f64;
        (down.round() as usize).min(4 * rows - 1)
    };
    let mut cells = vec![vec![0u32; columns]; rows];
    for (column, from, to) in line_segments(&train, dot_row) {
        for row in from.min(to)..=from.max(to) {
            cells[row / 4][column / 2] |= DOT_BITS[column % 2][row % 4];
        }
    }
    let mut markers = vec![vec![false; columns]; rows];
    val.iter().for_each(|(column, loss)| markers[dot_row(*loss) / 4][column / 2] = true);
    let labels = y_labels(low, high, rows, |loss| dot_row(loss) / 4);
    let line = |row: usize| {
        let (label, axis) = labels[row].as_ref().map_or(("", '│'), |label| (label, '┤'));
        format!("{label:>6.6} {axis}{}", text_row(&cells[row], &markers[row]))
    };
    (0..rows).map(line).chain(x_axis(plot.steps, columns)).collect()
}

/// The labels of the y-axis by row: round values, at least two rows apart.
fn y_labels(
    low: f64,
    high: f64,
    rows: usize,
    row_of: impl Fn(f64) -> usize,
) -> Vec<Option<String>> {
    let mut labels = vec![None; rows];
    let mut interval = round_interval((high - low) / (rows as f64 / ROWS_PER_LABEL).max(1.0));
    // At least two labels.
    while (high / interval).floor() - (low / interval).ceil() < 1.0 {
        interval = round_interval(interval * 0.49);
    }
    // The decimals of the interval: 0.25 needs two.
    let decimals = (0..5).find(|n| {
        let scaled = interval * 10f64.powi(*n);
        (scaled - scaled.round()).abs() < 1e-6
    });
    let first = (low / interval).ceil() as i64;
    let values = (first..).map(|n| n as f64 * interval).take_while(|value| *value <= high);
    for value in values.take(rows) {
        labels[row_of(value)] = Some(format!("{value:.*}", decimals.unwrap_or(5) as usize));
    }
    labels
}

/// The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below `interval`.
fn round_interval(interval: f64) -> f64 {
    let power = 10f64.powf(interval.log10().floor());
    let candidates = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    candidates.into_iter().find(|round| *round >= interval * (1.0 - 1e-9)).unwrap_or(interval)
}

/// The dot column of a step.
fn dot_column(step: f64, steps: f64, columns: usize) -> usize {
    ((step / steps.max(1.0) * (columns - 1) as f64).round() as usize).min(columns - 1)
}

/// The mean loss of each dot column, `None` without losses.
fn column_means(points: &[(f64, f64)], steps: f64, columns: usize) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0usize); columns];
    for (step, loss) in points.iter().filter(|(_, loss)| loss.is_finite()) {
        let sum = &mut sums[dot_column(*step, steps, columns)];
        *sum = (sum.0 + loss, sum.1 + 1);
    }
    sums.into_iter().map(|(sum, n)| (n > 0).then(|| sum / n as f64)).collect()
}

/// Minimum and maximum, widened if equal.
fn range(losses: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let range = losses.fold(None, |range: Option<(f64, f64)>, loss| {
        Some(range.map_or((loss, loss), |(low, high)| (low.min(loss), high.max(loss))))
    });
    range.map(|(low, high)| if high - low < 1e-6 { (low - 0.5, high + 0.5) } else { (low, high) })
}

/// `(column, first row, last row)` of the dots of a continuous line through the means, interpolated
/// over columns without losses.
fn line_segments(
    means: &[Option<f64>],
    dot_row: impl Fn(f64) -> usize,
) -> Vec<(usize, usize, usize)> {
    let known = means.iter().enumerate().filter_map(|(column, mean)| Some((column, (*mean)?)));
    let known: Vec<(usize, f64)> = known.collect();
    let first = known.first().map(|&(column, loss)| (column, dot_row(loss), dot_row(loss)));
    let mut segments: Vec<_> = first.into_iter().collect();
    for pair in known.windows(2) {
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

/// A row of characters, with one escape sequence per change of colour.
fn text_row(cells: &[u32], markers: &[bool]) -> String {
    let last = cells.iter().zip(markers).rposition(|(dots, marker)| *dots != 0 || *marker);
    let used = last.map_or(0, |last| last + 1);
    let mut text = String::new();
    let mut open: Option<Style> = None;
    for (dots, marker) in cells.iter().zip(markers).take(used) {
        let style = if *marker { VAL_STYLE } else { TRAIN_STYLE };
        if open != Some(style) {
            text.push_str(&open.map_or_else(String::new, |open| format!("{open:#}")));
            text.push_str(&style.to_string());
            open = Some(style);
        }
        text.push(match (marker, dots) {
            (true, _) => VAL_MARKER,
            (_, 0) => ' ',
            (_, dots) => char::from_u32(0x2800 + dots).unwrap_or(' '),
        });
    }
    text + &open.map_or_else(String::new, |open| format!("{open:#}"))
}

/// The x-axis and its labels: round steps, and the last one.
fn x_axis(steps: f64, columns: usize) -> [String; X_AXIS_HEIGHT] {
    let last = format!("{steps:.0}");
    let label_width = (last.len() + 3).max(COLUMNS_PER_LABEL);
    // Steps are integers.
    let interval = round_interval((steps * label_width as f64 / columns as f64).max(1.0));
    let interval = if interval < 10.0 { interval.ceil() } else { interval };
    let multiples = (0..columns).map(|n| n as f64 * interval);
    let round = multiples.take_while(|step| steps - step >= interval * 0.7);
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

    fn plain(plot: &LossPlot<'_>, width: usize, height: usize) -> Vec<String> {
        let strip = |line: &String| anstream::adapter::strip_str(line).to_string();
        draw(plot, width, height).iter().map(strip).collect()
    }

    #[test]
    fn decreasing_losses_are_drawn_with_axes_and_validation_markers() {
        let train: Vec<(f64, f64)> =
            (0..=60).map(|step| (f64::from(step), 4.0 / (1.0 + f64::from(step) / 10.0))).collect();
        let val = [(30.0, 1.2), (60.0, 0.7)];
        let plot = LossPlot { train: &train, val: &val, steps: 100.0 };
        let expected = [
            "       │⢹",
            "     3 ┤⠈⢧",
            "     2 ┤ ⠘⢦⡀",
            "       │   ⠳⢤⣀o",
            "     1 ┤     ⠈⠙⠒⠲⠤⠤⣄⣀o",
            "       └┬────────────────────┬",
            "        0                  100",
        ];
        assert_eq!(plain(&plot, 30, 7), expected, "{}", plain(&plot, 30, 7).join("\n"));
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
        let none = LossPlot { train: &[], val: &[], steps: 10.0 };
        assert!(draw(&none, 80, 10).is_empty());
        let nan = LossPlot { train: &[(1.0, f64::NAN)], val: &[], steps: 10.0 };
        assert!(draw(&nan, 80, 10).is_empty());
        let two = LossPlot { train: &[(0.0, 1.0), (10.0, 1.0)], val: &[], steps: 10.0 };
        let lines = plain(&two, 20, 5);
        assert!(lines[1].chars().skip(8).all(|dots| dots == '⠒' || dots == '⠤'), "{lines:?}");
        assert_eq!(lines[1].chars().count(), 20);
        for (width, height) in [(0, 0), (9, 9), (12, 1), (12, 3), (300, 100)] {
            let lines = plain(&two, width, height);
            assert!(lines.len() <= height, "{width}x{height}: {lines:?}");
            assert!(lines.iter().all(|l| l.chars().count() <= width.max(1)), "{width}: {lines:?}");
        }
    }
}
