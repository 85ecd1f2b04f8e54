//! The loss over the steps, in dots: a character has two by four of them. No I/O.

use anstyle::{AnsiColor, Style};

/// How the training loss is drawn.
const TRAINING: Style = AnsiColor::Cyan.on_default();
/// How validation losses are.
const VALIDATION: Style = AnsiColor::Yellow.on_default().bold();
/// What marks a validation.
pub const MARK: char = 'o';
/// Characters before the drawing: a loss and the axis.
const MARGIN: usize = 8;

/// The dots of a character, by column and row, as Unicode has them.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// What is drawn: points are steps and losses.
pub struct Curve<'a> {
    /// Training losses.
    pub training: &'a [(f64, f64)],
    /// Validation losses.
    pub validation: &'a [(f64, f64)],
    /// The last step: the right edge.
    pub steps: f64,
}

/// The curve as lines, so many characters wide and high, with its axes. Nothing where there is
/// nothing to draw.
pub fn draw(curve: &Curve<'_>, width: usize, height: usize) -> Vec<String> {
    let (columns, rows) = (width.saturating_sub(MARGIN), height.saturating_sub(1));
    if columns < 4 || rows < 2 {
        return Vec::new();
    }
    let trained = means(curve.training, curve.steps, 2 * columns);
    let tried: Vec<(usize, f64)> = curve
        .validation
        .iter()
        .filter(|(_, loss)| loss.is_finite())
        .map(|(step, loss)| (dot_of(*step, curve.steps, 2 * columns), *loss))
        .collect();
    let all = trained.iter().flatten().copied().chain(tried.iter().map(|(_, loss)| *loss));
    let Some((low, high)) = range(all) else { return Vec::new() };
    let row_of = |loss: f64| {
        let down = (high - loss) / (high - low) * (4 * rows - 1) as f64;
        (down.round() as usize).min(4 * rows - 1)
    };
    let mut cells = vec![vec![0u32; columns]; rows];
    for (column, from, to) in strokes(&trained, row_of) {
        for row in from.min(to)..=from.max(to) {
            cells[row / 4][column / 2] |= DOTS[column % 2][row % 4];
        }
    }
    let mut marks = vec![vec![false; columns]; rows];
    tried.iter().for_each(|(column, loss)| marks[row_of(*loss) / 4][column / 2] = true);
    let mut lines: Vec<String> = (0..rows)
        .map(|row| {
            let label = match row {
                0 => format!("{high:>6.3}"),
                _ if row == rows - 1 => format!("{low:>6.3}"),
                _ => " ".repeat(6),
            };
            format!("{:.6} │{}", label, line(&cells[row], &marks[row]))
        })
        .collect();
    lines.push(axis(curve.steps, columns));
    lines
}

/// Which column of dots a step is in.
fn dot_of(step: f64, steps: f64, columns: usize) -> usize {
    ((step / steps.max(1.0) * (columns - 1) as f64).round() as usize).min(columns - 1)
}

/// The mean loss of each column of dots that has any.
fn means(points: &[(f64, f64)], steps: f64, columns: usize) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0usize); columns];
    for (step, loss) in points.iter().filter(|(_, loss)| loss.is_finite()) {
        let sum = &mut sums[dot_of(*step, steps, columns)];
        *sum = (sum.0 + loss, sum.1 + 1);
    }
    sums.into_iter().map(|(sum, n)| (n > 0).then(|| sum / n as f64)).collect()
}

/// The least and the greatest, never the same.
fn range(losses: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let both = losses.fold(None, |both: Option<(f64, f64)>, loss| {
        Some(both.map_or((loss, loss), |(low, high)| (low.min(loss), high.max(loss))))
    });
    both.map(|(low, high)| if high - low < 1e-6 { (low - 0.5, high + 0.5) } else { (low, high) })
}

/// Columns of dots with where in them a line begins and ends, so that it has no gaps.
fn strokes(means: &[Option<f64>], row_of: impl Fn(f64) -> usize) -> Vec<(usize, usize, usize)> {
    let known: Vec<(usize, f64)> =
        means.iter().enumerate().filter_map(|(column, mean)| Some((column, (*mean)?))).collect();
    let mut strokes: Vec<(usize, usize, usize)> = known
        .first()
        .map(|(column, loss)| (*column, row_of(*loss), row_of(*loss)))
        .into_iter()
        .collect();
    for pair in known.windows(2) {
        let ((from, a), (to, b)) = (pair[0], pair[1]);
        let mut last = row_of(a);
        for column in from + 1..=to {
            let share = (column - from) as f64 / (to - from) as f64;
            let row = row_of(a + share * (b - a));
            strokes.push((column, last, row));
            last = row;
        }
    }
    strokes
}

/// A row of characters, coloured in as few pieces as can be.
fn line(cells: &[u32], marks: &[bool]) -> String {
    let last = cells.iter().zip(marks).rposition(|(dots, mark)| *dots != 0 || *mark);
    let used = last.map_or(0, |last| last + 1);
    let mut text = String::new();
    let mut open: Option<Style> = None;
    for (dots, mark) in cells.iter().zip(marks).take(used) {
        let style = if *mark { VALIDATION } else { TRAINING };
        if open != Some(style) {
            text.push_str(&open.map_or_else(String::new, |open| format!("{open:#}")));
            text.push_str(&style.to_string());
            open = Some(style);
        }
        text.push(match (mark, dots) {
            (true, _) => MARK,
            (_, 0) => ' ',
            (_, dots) => char::from_u32(0x2800 + dots).unwrap_or(' '),
        });
    }
    text + &open.map_or_else(String::new, |open| format!("{open:#}"))
}

/// The axis of steps.
fn axis(steps: f64, columns: usize) -> String {
    let last = format!(" {steps:.0}");
    let rule = "─".repeat(columns.saturating_sub(last.len()));
    format!("{:>6} └{rule}{last}", 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(curve: &Curve<'_>, width: usize, height: usize) -> Vec<String> {
        let strip = |line: &String| anstream::adapter::strip_str(line).to_string();
        draw(curve, width, height).iter().map(strip).collect()
    }

    #[test]
    fn a_falling_loss_falls() {
        let training: Vec<(f64, f64)> =
            (0..=60).map(|step| (f64::from(step), 4.0 / (1.0 + f64::from(step) / 10.0))).collect();
        let validation = [(30.0, 1.2), (60.0, 0.7)];
        let curve = Curve { training: &training, validation: &validation, steps: 100.0 };
        let expected = [
            " 3.818 │⢹",
            "       │⠈⢧",
            "       │ ⠘⢦⡀",
            "       │   ⠳⢤⣀o",
            " 0.571 │     ⠈⠙⠒⠲⠤⠤⣄⣀o",
            "     0 └────────────────── 100",
        ];
        assert_eq!(plain(&curve, 30, 6), expected, "{}", plain(&curve, 30, 6).join("\n"));
    }

    #[test]
    fn few_points_are_joined_and_none_are_nothing() {
        let none = Curve { training: &[], validation: &[], steps: 10.0 };
        assert!(draw(&none, 80, 10).is_empty());
        let lost = Curve { training: &[(1.0, f64::NAN)], validation: &[], steps: 10.0 };
        assert!(draw(&lost, 80, 10).is_empty());
        let two = Curve { training: &[(0.0, 1.0), (10.0, 1.0)], validation: &[], steps: 10.0 };
        let lines = plain(&two, 20, 4);
        assert!(lines[1].chars().skip(8).all(|dots| dots == '⠒' || dots == '⠤'), "{lines:?}");
        assert_eq!(lines[1].chars().count(), 20);
        for (width, height) in [(0, 0), (9, 9), (12, 1), (12, 3), (300, 100)] {
            let lines = plain(&two, width, height);
            assert!(
                lines.len() <= height && lines.iter().all(|l| l.chars().count() <= width.max(1))
            );
        }
    }
}
