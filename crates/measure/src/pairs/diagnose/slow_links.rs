//! Finds the slow endpoints and links of one matrix: its slow rows, columns and cells.
//!
//! A matrix holds speeds (row: sender, column: receiver; higher is better). A slow row is an
//! endpoint that sends slowly, a slow column one that receives slowly. They are found one by one,
//! the largest first, so that cells explained by one are not counted again. A cell that is still
//! slow relative to its row and column is a slow link.

use regatta_model::bench::PairMatrix;

/// Fraction of slow cells that makes a row slow.
const SLOW_FRACTION: f64 = 0.75;

/// Cells of a row with a slow median may be slightly above the threshold.
const SLACK: f64 = 1.1;

/// The slow direction of an endpoint or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlowDirection {
    /// Both directions.
    Both,
    /// Sending; for a link, only in the named direction.
    Send,
    /// Receiving.
    Recv,
}

/// An endpoint that is slow to all others.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SlowEndpoint {
    pub end: usize,
    pub direction: SlowDirection,
    /// Speed relative to the reference.
    pub level: f64,
}

impl SlowEndpoint {
    /// Affected cells of `n` endpoints.
    pub fn cells(&self, n: usize) -> Vec<(usize, usize)> {
        let end = self.end;
        let sides: &[bool] = match self.direction {
            SlowDirection::Both => &[true, false],
            SlowDirection::Send => &[true],
            SlowDirection::Recv => &[false],
        };
        sides.iter().flat_map(|&is_sender| MatrixSide { end, is_sender }.cells(n)).collect()
    }
}

/// A link that is slower than its endpoints.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SlowLink {
    pub from: usize,
    pub to: usize,
    pub direction: SlowDirection,
    /// Speed relative to what the endpoints allow.
    pub level: f64,
    /// What the endpoints allow, relative to the reference.
    pub allowed: f64,
}

impl SlowLink {
    /// Affected cells.
    pub fn cells(&self) -> Vec<(usize, usize)> {
        let back = (self.direction == SlowDirection::Both).then_some((self.to, self.from));
        [(self.from, self.to)].into_iter().chain(back).collect()
    }
}

/// Slow endpoints and links of a matrix.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SlowLinks {
    /// Speed of healthy links.
    pub reference: f64,
    pub ends: Vec<SlowEndpoint>,
    pub links: Vec<SlowLink>,
    /// Expected speed of each cell given these, relative to the reference.
    pub explained: Vec<Vec<f64>>,
}

/// Finds rows, columns and cells slower than `bound` times the expected speed.
pub(super) fn find(speeds: &PairMatrix, bound: f64) -> SlowLinks {
    let Some(reference) = reference(speeds) else {
        let explained = vec![vec![1.0; speeds.len()]; speeds.len()];
        return SlowLinks { explained, ..<_>::default() };
    };
    let ratio = |speed: &Option<f64>| speed.map(|speed| speed / reference);
    let ratios: PairMatrix = speeds.iter().map(|row| row.iter().map(ratio).collect()).collect();
    let sides = slow_sides(&ratios, bound);
    let mut explained = vec![vec![1.0_f64; ratios.len()]; ratios.len()];
    for (side, level) in &sides {
        for (i, j) in side.cells(ratios.len()) {
            explained[i][j] = explained[i][j].min(*level);
        }
    }
    let links = slow_links(&ratios, &explained, bound);
    for link in &links {
        for (i, j) in link.cells() {
            explained[i][j] *= link.level;
        }
    }
    SlowLinks { reference, ends: slow_ends(&sides), links, explained }
}

/// Cells below `bound` times the reference.
pub(super) fn cells_below(speeds: &PairMatrix, bound: f64) -> Vec<(usize, usize)> {
    let Some(reference) = reference(speeds) else { return Vec::new() };
    let n = speeds.len();
    let cells = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
    cells.filter(|(i, j)| speeds[*i][*j].is_some_and(|speed| speed < bound * reference)).collect()
}

/// Speed of healthy links: the median of the cells that remain if one endpoint and one other link
/// are slow in both directions. For few endpoints this is an upper quantile of all cells, for many
/// the median.
fn reference(speeds: &PairMatrix) -> Option<f64> {
    let mut all: Vec<f64> = speeds.iter().flatten().flatten().copied().collect();
    all.retain(|speed| speed.is_finite() && *speed > 0.0);
    all.sort_by(f64::total_cmp);
    let others = speeds.len().saturating_sub(1).max(1) as f64;
    let quantile = (0.5 + 1.0 / others).min(1.0);
    let location = (quantile * all.len() as f64).ceil() as usize;
    all.get(location.saturating_sub(1)).copied()
}

/// One row or column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MatrixSide {
    end: usize,
    is_sender: bool,
}

impl MatrixSide {
    fn cells(self, n: usize) -> impl Iterator<Item = (usize, usize)> {
        let Self { end, is_sender } = self;
        let others = (0..n).filter(move |other| *other != end);
        others.map(move |other| if is_sender { (end, other) } else { (other, end) })
    }
}

/// Slowness of a side, without explained cells.
struct Slowness {
    side: MatrixSide,
    slow: usize,
    level: f64,
}

/// Slow rows and columns with their levels.
fn slow_sides(ratios: &PairMatrix, bound: f64) -> Vec<(MatrixSide, f64)> {
    let n = ratios.len();
    let mut explained = vec![vec![false; n]; n];
    let mut found: Vec<(MatrixSide, f64)> = Vec::new();
    let sides = (0..n).flat_map(|end| [true, false].map(|is_sender| MatrixSide { end, is_sender }));
    let mut left: Vec<MatrixSide> = sides.collect();
    loop {
        let all = left.iter().filter_map(|side| slowness(ratios, &explained, *side, bound));
        let worse = |a: &Slowness, b: &Slowness| {
            a.slow.cmp(&b.slow).then_with(|| b.level.total_cmp(&a.level))
        };
        let Some(worst) = all.max_by(worse) else { return found };
        left.retain(|side| *side != worst.side);
        for (i, j) in worst.side.cells(n) {
            explained[i][j] = true;
        }
        found.push((worst.side, worst.level));
    }
}

/// `Some` if a side is slow: of the unexplained cells, the median and nearly all. A single cell is
/// a link.
fn slowness(
    ratios: &PairMatrix,
    explained: &[Vec<bool>],
    side: MatrixSide,
    bound: f64,
) -> Option<Slowness> {
    let open = side.cells(ratios.len()).filter(|(i, j)| !explained[*i][*j]);
    let open_cells: Vec<f64> = open.filter_map(|(i, j)| ratios[i][j]).collect();
    let slow = open_cells.iter().filter(|ratio| **ratio < bound * SLACK).count();
    let level = upper_median(open_cells.clone()).filter(|level| *level < bound)?;
    let is_slow = open_cells.len() >= 2 && slow as f64 >= SLOW_FRACTION * open_cells.len() as f64;
    is_slow.then_some(Slowness { side, slow, level })
}

/// Merges both sides of an endpoint into one fault.
fn slow_ends(sides: &[(MatrixSide, f64)]) -> Vec<SlowEndpoint> {
    let of = |end, is_sender| sides.iter().find(|(side, _)| *side == MatrixSide { end, is_sender });
    let mut ends: Vec<SlowEndpoint> = Vec::new();
    for (MatrixSide { end, .. }, _) in sides {
        let (direction, level) = match (of(*end, true), of(*end, false)) {
            (Some((_, send)), Some((_, receive))) => (SlowDirection::Both, send.min(*receive)),
            (Some((_, send)), None) => (SlowDirection::Send, *send),
            (None, Some((_, receive))) => (SlowDirection::Recv, *receive),
            (None, None) => continue,
        };
        if ends.iter().all(|found| found.end != *end) {
            ends.push(SlowEndpoint { end: *end, direction, level });
        }
    }
    ends
}

/// Cells slower than their endpoints allow; both directions of a link are one fault.
fn slow_links(ratios: &PairMatrix, allowed: &[Vec<f64>], bound: f64) -> Vec<SlowLink> {
    let level = |i: usize, j: usize| {
        let level = ratios[i][j]? / allowed[i][j];
        (level < bound).then_some(level)
    };
    let mut links = Vec::new();
    for from in 0..ratios.len() {
        for to in from + 1..ratios.len() {
            let (from, to, direction, level) = match (level(from, to), level(to, from)) {
                (Some(there), Some(back)) if back < there => (to, from, SlowDirection::Both, back),
                (Some(there), Some(_)) => (from, to, SlowDirection::Both, there),
                (Some(there), None) => (from, to, SlowDirection::Send, there),
                (None, Some(back)) => (to, from, SlowDirection::Send, back),
                (None, None) => continue,
            };
            links.push(SlowLink { from, to, direction, level, allowed: allowed[from][to] });
        }
    }
    links
}

/// The median; of an even count the upper one.
pub(super) fn upper_median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
