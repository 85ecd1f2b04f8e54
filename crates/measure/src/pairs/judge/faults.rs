//! The heart of the judgement: which rows, columns and cells of one matrix are slow.
//!
//! A matrix is of speeds (the row sends, the column receives; higher is better). A whole row that is
//! slow is an end that sends slowly, a whole column one that receives slowly; they are found one
//! after the other, the largest first, so that what one of them explains is not held against the
//! others. What is still slow then, measured by what its row and column allow, is a link.

use regatta_model::bench::Matrix;

/// What part of a row must be slow for it to count as a whole.
const WHOLE: f64 = 0.75;

/// A row whose median is below the bound may have some of its figures a little above it.
const SLACK: f64 = 1.1;

/// In which direction something is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Both.
    Both,
    /// Of an end, what it sends; of a link, the one way that it is named in.
    Sending,
    /// What it receives.
    Receiving,
}

/// An end that is slow as a whole.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SlowEnd {
    pub end: usize,
    pub way: Way,
    /// Its speed as a part of what is usual.
    pub level: f64,
}

impl SlowEnd {
    /// What it slows of `n` ends: from whom to whom.
    pub fn cells(&self, n: usize) -> Vec<(usize, usize)> {
        let end = self.end;
        let sides = match self.way {
            Way::Both => [true, false].as_slice(),
            Way::Sending => &[true],
            Way::Receiving => &[false],
        };
        sides.iter().flat_map(|sends| Side { end, sends: *sends }.cells(n)).collect()
    }
}

/// A link that is slower than its ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SlowLink {
    pub from: usize,
    pub to: usize,
    pub way: Way,
    /// Its speed as a part of what its ends allow.
    pub level: f64,
    /// What its ends allow, as a part of what is usual.
    pub allowed: f64,
}

impl SlowLink {
    /// What it slows: from whom to whom.
    pub fn cells(&self) -> Vec<(usize, usize)> {
        let back = (self.way == Way::Both).then_some((self.to, self.from));
        [(self.from, self.to)].into_iter().chain(back).collect()
    }
}

/// What is wrong with a matrix.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Faults {
    /// The speed of those with which nothing is wrong.
    pub usual: f64,
    pub ends: Vec<SlowEnd>,
    pub links: Vec<SlowLink>,
    /// What is to be expected of each way with these faults, as a part of what is usual.
    pub explained: Vec<Vec<f64>>,
}

/// Finds what is slower than `bound` times what is to be expected.
pub(super) fn find(speeds: &Matrix, bound: f64) -> Faults {
    let Some(usual) = usual(speeds) else {
        return Faults { explained: vec![vec![1.0; speeds.len()]; speeds.len()], ..<_>::default() };
    };
    let part = |speed: &Option<f64>| speed.map(|speed| speed / usual);
    let parts: Matrix = speeds.iter().map(|row| row.iter().map(part).collect()).collect();
    let sides = slow_sides(&parts, bound);
    let mut explained = vec![vec![1.0_f64; parts.len()]; parts.len()];
    for (side, level) in &sides {
        for (i, j) in side.cells(parts.len()) {
            explained[i][j] = explained[i][j].min(*level);
        }
    }
    let links = slow_links(&parts, &explained, bound);
    for link in &links {
        for (i, j) in link.cells() {
            explained[i][j] *= link.level;
        }
    }
    Faults { usual, ends: slow_ends(&sides), links, explained }
}

/// What is below `bound` times what is usual: from whom to whom.
pub(super) fn below(speeds: &Matrix, bound: f64) -> Vec<(usize, usize)> {
    let Some(usual) = usual(speeds) else { return Vec::new() };
    let n = speeds.len();
    let cells = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
    cells.filter(|(i, j)| speeds[*i][*j].is_some_and(|speed| speed < bound * usual)).collect()
}

/// The speed of those with which nothing is wrong: the median of what is left of `n` ends if one of
/// them and one link of the others are slow both ways. Of few ends that is the upper part of all
/// figures, of many ends the median.
fn usual(speeds: &Matrix) -> Option<f64> {
    let mut all: Vec<f64> = speeds.iter().flatten().flatten().copied().collect();
    all.retain(|speed| speed.is_finite() && *speed > 0.0);
    all.sort_by(f64::total_cmp);
    let others = speeds.len().saturating_sub(1).max(1) as f64;
    let quantile = (0.5 + 1.0 / others).min(1.0);
    let place = (quantile * all.len() as f64).ceil() as usize;
    all.get(place.saturating_sub(1)).copied()
}

/// One direction of one end: a row or a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Side {
    end: usize,
    sends: bool,
}

impl Side {
    fn cells(self, n: usize) -> impl Iterator<Item = (usize, usize)> {
        let Self { end, sends } = self;
        let others = (0..n).filter(move |other| *other != end);
        others.map(move |other| if sends { (end, other) } else { (other, end) })
    }
}

/// How slow a side is by what nothing else explains.
struct Slowness {
    side: Side,
    slow: usize,
    level: f64,
}

/// Rows and columns that are slow as a whole, with their levels.
fn slow_sides(parts: &Matrix, bound: f64) -> Vec<(Side, f64)> {
    let n = parts.len();
    let mut explained = vec![vec![false; n]; n];
    let mut found: Vec<(Side, f64)> = Vec::new();
    let sides = (0..n).flat_map(|end| [true, false].map(|sends| Side { end, sends }));
    let mut left: Vec<Side> = sides.collect();
    loop {
        let all = left.iter().filter_map(|side| slowness(parts, &explained, *side, bound));
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

/// `Some` if a side is slow as a whole: of what nothing else explains, the median and nearly all.
/// One way alone is a link.
fn slowness(parts: &Matrix, explained: &[Vec<bool>], side: Side, bound: f64) -> Option<Slowness> {
    let open = side.cells(parts.len()).filter(|(i, j)| !explained[*i][*j]);
    let own: Vec<f64> = open.filter_map(|(i, j)| parts[i][j]).collect();
    let slow = own.iter().filter(|part| **part < bound * SLACK).count();
    let level = upper_median(own.clone()).filter(|level| *level < bound)?;
    let whole = own.len() >= 2 && slow as f64 >= WHOLE * own.len() as f64;
    whole.then_some(Slowness { side, slow, level })
}

/// Both sides of an end are one fault.
fn slow_ends(sides: &[(Side, f64)]) -> Vec<SlowEnd> {
    let of = |end, sends| sides.iter().find(|(side, _)| *side == Side { end, sends });
    let mut ends: Vec<SlowEnd> = Vec::new();
    for (Side { end, .. }, _) in sides {
        let (way, level) = match (of(*end, true), of(*end, false)) {
            (Some((_, sends)), Some((_, receives))) => (Way::Both, sends.min(*receives)),
            (Some((_, sends)), None) => (Way::Sending, *sends),
            (None, Some((_, receives))) => (Way::Receiving, *receives),
            (None, None) => continue,
        };
        if ends.iter().all(|found| found.end != *end) {
            ends.push(SlowEnd { end: *end, way, level });
        }
    }
    ends
}

/// What is slower than its ends allow; both directions of a link are one fault.
fn slow_links(parts: &Matrix, allowed: &[Vec<f64>], bound: f64) -> Vec<SlowLink> {
    let level = |i: usize, j: usize| {
        let level = parts[i][j]? / allowed[i][j];
        (level < bound).then_some(level)
    };
    let mut links = Vec::new();
    for from in 0..parts.len() {
        for to in from + 1..parts.len() {
            let link = |from: usize, to: usize, way, level| SlowLink {
                from,
                to,
                way,
                level,
                allowed: allowed[from][to],
            };
            match (level(from, to), level(to, from)) {
                (Some(there), Some(back)) if back < there => {
                    links.push(link(to, from, Way::Both, back));
                }
                (Some(there), Some(_)) => links.push(link(from, to, Way::Both, there)),
                (Some(there), None) => links.push(link(from, to, Way::Sending, there)),
                (None, Some(back)) => links.push(link(to, from, Way::Sending, back)),
                (None, None) => {}
            }
        }
    }
    links
}

/// The median; of an even number the greater of both.
pub(super) fn upper_median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied()
}
