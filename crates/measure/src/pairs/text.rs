//! The matrices for a terminal: figures where there is room for them, else one sign for each.

use regatta_model::bench::{Matrix, PairEnd, Pairs};

use super::judge::words::short;

/// From the worst to as good as the best.
const SIGNS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Columns of a figure with its sign and the space before.
const CELL: usize = 7;

/// Longer names are cut.
const LONGEST_NAME: usize = 24;

/// Both matrices in so many columns. The row sends, the column receives.
pub fn draw(pairs: &Pairs, columns: usize) -> String {
    if pairs.fault().is_some() || pairs.ends.is_empty() {
        return String::new();
    }
    let (bandwidth, unit) = in_unit(&pairs.bandwidth);
    let title = format!("bandwidth from the row's to the column's rank, {unit}");
    let first = matrix(&title, &pairs.ends, &bandwidth, columns, Quality::high(&bandwidth));
    let (title, latency) = ("latency of 8 bytes, half of there and back, us", &pairs.latency_us);
    let second = matrix(title, &pairs.ends, latency, columns, Quality::low(latency));
    format!("{first}\n{second}")
}

/// How good figures are beside the best of a matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quality {
    best: f64,
    high: bool,
}

impl Quality {
    /// Of figures of which the highest is the best.
    pub fn high(matrix: &Matrix) -> Self {
        Self { best: figures(matrix).fold(0.0, f64::max), high: true }
    }

    /// Of those of which the lowest is.
    pub fn low(matrix: &Matrix) -> Self {
        Self { best: figures(matrix).fold(f64::INFINITY, f64::min), high: false }
    }

    /// Which of so many steps a figure is on; the last is that of the best.
    pub fn step(self, figure: f64, steps: usize) -> usize {
        let part = if self.high { figure / self.best } else { self.best / figure };
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        ((part * steps as f64) as usize).min(steps - 1)
    }

    fn worse(self, one: f64, other: f64) -> f64 {
        if self.high { one.min(other) } else { one.max(other) }
    }

    fn sign(self, figure: f64) -> char {
        SIGNS[self.step(figure, SIGNS.len())]
    }
}

fn figures(matrix: &Matrix) -> impl Iterator<Item = f64> {
    matrix.iter().flatten().flatten().copied().filter(|figure| figure.is_finite())
}

/// Bandwidths in the unit that suits the greatest of them.
pub(super) fn in_unit(bandwidth: &Matrix) -> (Matrix, &'static str) {
    if figures(bandwidth).any(|figure| figure >= 1.0) {
        return (bandwidth.clone(), "GB/s");
    }
    let cell = |cell: &Option<f64>| cell.map(|gb| gb * 1e3);
    (bandwidth.iter().map(|row| row.iter().map(cell).collect()).collect(), "MB/s")
}

/// Names for rows: host and rank, of foreign hosts what a terminal can show.
pub(super) fn names(ends: &[PairEnd]) -> Vec<String> {
    let name = |end: &PairEnd| {
        let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        let host: String = end.host.chars().take(LONGEST_NAME).map(plain).collect();
        format!("{host} {}", end.rank)
    };
    ends.iter().map(name).collect()
}

fn matrix(
    title: &str,
    ends: &[PairEnd],
    figures: &Matrix,
    columns: usize,
    quality: Quality,
) -> String {
    let names = names(ends);
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let room = columns.saturating_sub(label + 1);
    if ends.len() * CELL <= room {
        return with_figures(title, &names, label, figures, quality);
    }
    with_signs(title, &names, label, figures, room.max(8), quality)
}

fn with_figures(
    title: &str,
    names: &[String],
    label: usize,
    figures: &Matrix,
    quality: Quality,
) -> String {
    let ranks = names.iter().map(|name| name.rsplit(' ').next().unwrap_or_default());
    let head: String = ranks.map(|rank| format!("{rank:>CELL$}")).collect();
    let mut text = format!("{title}\n{:label$} {head}\n", "");
    for (name, row) in names.iter().zip(figures) {
        let cell = |cell: &Option<f64>| match cell {
            Some(figure) => format!("{:>1$}{2}", short(*figure), CELL - 1, quality.sign(*figure)),
            None => format!("{:>CELL$}", "·"),
        };
        let cells: String = row.iter().map(cell).collect();
        text.push_str(&format!("{name:label$} {cells}\n"));
    }
    text
}

/// One sign a figure; if there are more than fit, one for the worst of several.
fn with_signs(
    title: &str,
    names: &[String],
    label: usize,
    figures: &Matrix,
    room: usize,
    quality: Quality,
) -> String {
    let step = names.len().div_ceil(room).max(1);
    let of = |rows: &[Vec<Option<f64>>], at: usize| {
        let cells = rows.iter().flat_map(|row| row[at..row.len().min(at + step)].iter().flatten());
        let worst = cells.copied().reduce(|one, other| quality.worse(one, other));
        worst.map_or('·', |figure| quality.sign(figure))
    };
    let folded = if step == 1 { String::new() } else { format!(", the worst of {step} by {step}") };
    let mut text = format!("{title}; █ is {}{folded}\n", short(quality.best));
    for (name, rows) in names.chunks(step).zip(figures.chunks(step)) {
        let signs: String = (0..names.len()).step_by(step).map(|at| of(rows, at)).collect();
        let first = name.first().map(String::as_str).unwrap_or_default();
        text.push_str(&format!("{first:label$} {signs}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(n: usize, figure: impl Fn(usize, usize) -> f64) -> Pairs {
        let end = |at: usize| PairEnd { rank: at as u32, host: format!("node{at}") };
        let row = |i: usize| (0..n).map(|j| (i != j).then(|| figure(i, j))).collect();
        let square: Matrix = (0..n).map(row).collect();
        Pairs {
            ends: (0..n).map(end).collect(),
            bandwidth: square.clone(),
            latency_us: square.clone(),
            latency_median_us: square,
            ..Pairs::default()
        }
    }

    #[test]
    fn few_are_drawn_with_figures() {
        let text = draw(&pairs(3, |i, j| if (i, j) == (0, 2) { 0.025 } else { 0.1 }), 80);
        let wanted = "bandwidth from the row's to the column's rank, MB/s
              0      1      2
node0 0       ·   100█  25.0▃
node1 1    100█      ·   100█
node2 2    100█   100█      ·
";
        assert!(text.starts_with(wanted), "{text}");
        assert!(text.contains("node0 0       ·  0.10▃  0.03█\n"), "{text}");
    }

    #[test]
    fn many_are_drawn_with_signs_and_the_worst_is_seen() {
        let bad = |i, j| if (i, j) == (70, 3) { 1.0 } else { 8.0 };
        let text = draw(&pairs(100, bad), 60);
        let bandwidth: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
        assert!(bandwidth[0].ends_with("GB/s; █ is 8.00, the worst of 2 by 2"), "{text}");
        assert_eq!(bandwidth.len(), 51);
        assert!(bandwidth[36].starts_with("node70 70 █▂█"), "{text}");
        assert!(bandwidth.iter().all(|line| line.chars().count() <= 60 || line.contains("GB/s")));
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        let mut pairs = pairs(2, |_, _| 1.0);
        pairs.ends[0].host = "a\u{1b}[31m\nb".to_owned();
        assert!(draw(&pairs, 80).contains("\na?[31m?b 0"));
    }

    proptest! {
        #[test]
        fn any_width_and_number_can_be_drawn(n in 0usize..70, columns in 0usize..200) {
            let text = draw(&pairs(n, |i, j| (i * j) as f64), columns);
            prop_assert_eq!(text.is_empty(), n == 0);
        }
    }
}
