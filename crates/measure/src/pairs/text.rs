//! The matrices as a text heat map: values where they fit, else one glyph per cell.

use regatta_draw::bar::LEVELS;
use regatta_model::bench::{PairEndpoint, PairMatrices, PairMatrix};

use super::diagnose::messages::short;

/// Width of a value with its glyph and a space.
const CELL: usize = 7;

/// Longer host names are truncated.
const MAX_NAME_CHARS: usize = 24;

/// Both matrices in `columns` columns. Rows send, columns receive.
pub fn draw(pairs: &PairMatrices, columns: usize) -> String {
    if pairs.inconsistency().is_some() || pairs.endpoints.is_empty() {
        return String::new();
    }
    let (bandwidth, unit) = in_unit(&pairs.bandwidth);
    let title = format!("bandwidth from row to column, {unit}");
    let first = matrix(&title, &pairs.endpoints, &bandwidth, columns, ColorScale::high(&bandwidth));
    let (title, latency) = ("latency of 8 bytes (half round-trip), us", &pairs.latency_us);
    let second = matrix(title, &pairs.endpoints, latency, columns, ColorScale::low(latency));
    format!("{first}\n{second}")
}

/// Scale of values relative to the best of a matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ColorScale {
    best: f64,
    high: bool,
}

impl ColorScale {
    /// Higher is better.
    pub fn high(matrix: &PairMatrix) -> Self {
        Self { best: values(matrix).fold(0.0, f64::max), high: true }
    }

    /// Lower is better.
    pub fn low(matrix: &PairMatrix) -> Self {
        Self { best: values(matrix).fold(f64::INFINITY, f64::min), high: false }
    }

    /// Step of a value out of `steps`; the last is the best.
    pub fn step(self, value: f64, steps: usize) -> usize {
        let ratio = if self.high { value / self.best } else { self.best / value };
        let ratio = if ratio.is_nan() { 0.0 } else { ratio.clamp(0.0, 1.0) };
        ((ratio * steps as f64) as usize).min(steps - 1)
    }

    fn worse(self, one: f64, other: f64) -> f64 {
        if self.high { one.min(other) } else { one.max(other) }
    }

    fn glyph(self, value: f64) -> char {
        LEVELS[self.step(value, LEVELS.len())]
    }
}

fn values(matrix: &PairMatrix) -> impl Iterator<Item = f64> {
    matrix.iter().flatten().flatten().copied().filter(|value| value.is_finite())
}

/// Bandwidths in GB/s, or in MB/s if all are below 1 GB/s.
pub(super) fn in_unit(bandwidth: &PairMatrix) -> (PairMatrix, &'static str) {
    if values(bandwidth).any(|value| value >= 1.0) {
        return (bandwidth.clone(), "GB/s");
    }
    let cell = |cell: &Option<f64>| cell.map(|gb| gb * 1e3);
    (bandwidth.iter().map(|row| row.iter().map(cell).collect()).collect(), "MB/s")
}

/// Row labels: host and rank, with non-printable characters replaced.
pub(super) fn names(ends: &[PairEndpoint]) -> Vec<String> {
    let name = |end: &PairEndpoint| {
        let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
        let host: String = end.host.chars().take(MAX_NAME_CHARS).map(plain).collect();
        format!("{host} {}", end.rank)
    };
    ends.iter().map(name).collect()
}

/// One matrix: the values if they fit, else one glyph per cell or, if those do not fit either, per
/// block of cells (the worst).
fn matrix(
    title: &str,
    ends: &[PairEndpoint],
    values: &PairMatrix,
    columns: usize,
    scale: ColorScale,
) -> String {
    let names = names(ends);
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = columns.saturating_sub(label + 1);
    if names.len() * CELL <= width {
        let ranks = names.iter().map(|name| name.rsplit(' ').next().unwrap_or_default());
        let header: String = ranks.map(|rank| format!("{rank:>CELL$}")).collect();
        let cell = |cell: &Option<f64>| match cell {
            Some(value) => format!("{:>1$}{2}", short(*value), CELL - 1, scale.glyph(*value)),
            None => format!("{:>CELL$}", "·"),
        };
        let line = |(name, row): (&String, &Vec<Option<f64>>)| {
            format!("{name:label$} {}\n", row.iter().map(cell).collect::<String>())
        };
        let lines: String = names.iter().zip(values).map(line).collect();
        return format!("{title}\n{:label$} {header}\n{lines}", "");
    }
    let step = names.len().div_ceil(width.max(8)).max(1);
    let worst = |rows: &[Vec<Option<f64>>], at: usize| {
        let cells = rows.iter().flat_map(|row| row[at..row.len().min(at + step)].iter().flatten());
        let worst = cells.copied().reduce(|one, other| scale.worse(one, other));
        worst.map_or('·', |value| scale.glyph(value))
    };
    let block = if step == 1 { String::new() } else { format!(", worst of {step} × {step}") };
    let mut text = format!("{title}; █ = {}{block}\n", short(scale.best));
    for (names_of_rows, rows) in names.chunks(step).zip(values.chunks(step)) {
        let glyphs: String = (0..names.len()).step_by(step).map(|at| worst(rows, at)).collect();
        text += &format!("{:label$} {glyphs}\n", names_of_rows[0]);
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in super::super) fn pairs(n: usize, value: impl Fn(usize, usize) -> f64) -> PairMatrices {
        let end = |at: usize| PairEndpoint { rank: at as u32, host: format!("node{at}") };
        let row = |i: usize| (0..n).map(|j| (i != j).then(|| value(i, j))).collect();
        let square: PairMatrix = (0..n).map(row).collect();
        PairMatrices {
            endpoints: (0..n).map(end).collect(),
            bandwidth: square.clone(),
            latency_us: square.clone(),
            latency_median_us: square,
            ..PairMatrices::default()
        }
    }

    #[test]
    fn small_matrices_show_values() {
        let text = draw(&pairs(3, |i, j| if (i, j) == (0, 2) { 0.025 } else { 0.1 }), 80);
        let expected = "bandwidth from row to column, MB/s
              0      1      2
node0 0       ·   100█  25.0▃
node1 1    100█      ·   100█
node2 2    100█   100█      ·
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("node0 0       ·  0.10▃  0.03█\n"), "{text}");
    }

    #[test]
    fn large_matrices_show_the_worst_of_each_block() {
        let bad = |i, j| if (i, j) == (70, 3) { 1.0 } else { 8.0 };
        let text = draw(&pairs(100, bad), 60);
        let bandwidth: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
        assert!(bandwidth[0].ends_with("GB/s; █ = 8.00, worst of 2 × 2"), "{text}");
        assert_eq!(bandwidth.len(), 51);
        assert!(bandwidth[36].starts_with("node70 70 █▂█"), "{text}");
        assert!(bandwidth.iter().all(|line| line.chars().count() <= 60 || line.contains("GB/s")));
    }

    #[test]
    fn control_characters_in_host_names_are_replaced() {
        let mut pairs = pairs(2, |_, _| 1.0);
        pairs.endpoints[0].host = "a\u{1b}[31m\nb".to_owned();
        assert!(draw(&pairs, 80).contains("\na?[31m?b 0"));
    }

    proptest! {
        #[test]
        fn any_size_and_width_can_be_drawn(n in 0usize..70, columns in 0usize..200) {
            let text = draw(&pairs(n, |i, j| (i * j) as f64), columns);
            prop_assert_eq!(text.is_empty(), n == 0);
        }
    }
}
