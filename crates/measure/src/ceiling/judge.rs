//! Who stands out: ranks that are slower than the others at the same thing, or could not do it. No
//! I/O.

use std::collections::{BTreeMap, BTreeSet};

use regatta_model::{Ceiling, CeilingKind, RateUnit};

use super::Row;

/// A rank is slow if it is this much below the median.
pub const TOLERANCE: f64 = 0.1;

/// So many median deviations below the median is far: three standard deviations, each of which is
/// 1.4826 median ones where values are spread as errors are.
const FAR: f64 = 3.0 * 1.4826;

/// What rows must have in common to be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// What was measured.
    pub kind: CeilingKind,
    /// Of it, what.
    pub what: String,
    /// On which device; empty where ranks may have different ones, as they may have folders.
    pub device: String,
    /// What the rates count.
    pub unit: RateUnit,
}

impl Key {
    /// The key of a row.
    pub fn of(row: &Row) -> Self {
        let device = match row.kind {
            CeilingKind::Disk => String::new(),
            CeilingKind::Gemm | CeilingKind::Copy => row.device.clone(),
        };
        Self { kind: row.kind, what: row.what.clone(), device, unit: row.unit }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.kind.label(&self.what))?;
        match self.device.as_str() {
            "" | "cpu" => Ok(()),
            device => write!(f, " on {device}"),
        }
    }
}

/// How the rates of all ranks at one thing spread.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// At what.
    pub key: Key,
    /// How many ranks did it.
    pub ranks: usize,
    /// The least rate.
    pub least: f64,
    /// The rate that half of the ranks reach.
    pub median: f64,
    /// The greatest rate.
    pub greatest: f64,
    /// A rate below this is slow.
    pub limit: f64,
}

/// A rank that is slow at something.
#[derive(Debug, Clone, PartialEq)]
pub struct Slow {
    /// The rank.
    pub rank: u32,
    /// Its node.
    pub host: String,
    /// At what.
    pub key: Key,
    /// Its rate.
    pub rate: f64,
    /// That of the median.
    pub ratio: f64,
}

impl std::fmt::Display for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, host, key, rate, ratio } = self;
        let (percent, unit) = (ratio * 100.0, key.unit.name());
        write!(f, "rank {rank} on {host}: {key}: {rate:.1} {unit}, {percent:.0} % of the median")
    }
}

/// A rank that could not do what most others did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The rank.
    pub rank: u32,
    /// Its node.
    pub host: String,
    /// What most others did and it did not.
    pub keys: Vec<Key>,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, host, keys } = self;
        let first = keys.first().map(Key::to_string).unwrap_or_default();
        write!(f, "rank {rank} on {host}: no {first}")?;
        match keys.len() {
            0 | 1 => f.write_str(", which most others have"),
            more => write!(f, " and {} more, which most others have", more - 1),
        }
    }
}

/// Who stands out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// All that was compared.
    pub groups: Vec<Group>,
    /// Who is slow, the slowest first.
    pub slow: Vec<Slow>,
    /// Who could not do what most did.
    pub missing: Vec<Missing>,
}

impl Verdict {
    /// Whether nobody stands out.
    pub fn is_even(&self) -> bool {
        self.slow.is_empty() && self.missing.is_empty()
    }

    /// The group that a row belongs to.
    pub fn group(&self, row: &Row) -> Option<&Group> {
        let key = Key::of(row);
        self.groups.iter().find(|group| group.key == key)
    }
}

/// Judges the rows of all ranks, each of which has a name even if it has no rows.
///
/// A rank is slow at something if its median rate is below that of all ranks by more than the
/// tolerance, and by more than ranks differ anyway: where all rates are scattered, as those of a
/// shared file system, a low one does not stand out.
pub fn judge(ranks: &[(u32, String)], ceilings: &[Ceiling], tolerance: f64) -> Verdict {
    let by_key = by_key(ceilings);
    let mut verdict = Verdict { missing: missing(ranks, &by_key), ..Verdict::default() };
    for (key, members) in by_key {
        let rates: Vec<f64> = members.iter().map(|ceiling| ceiling.row.median).collect();
        let Some(group) = group(key, rates, tolerance) else { continue };
        for ceiling in members.iter().filter(|ceiling| ceiling.row.median < group.limit) {
            let (host, rate) = (ceiling.host.clone(), ceiling.row.median);
            let (key, ratio) = (group.key.clone(), rate / group.median);
            verdict.slow.push(Slow { rank: ceiling.rank, host, key, rate, ratio });
        }
        verdict.groups.push(group);
    }
    verdict.slow.sort_by(|a, b| a.ratio.total_cmp(&b.ratio).then(a.rank.cmp(&b.rank)));
    verdict
}

/// The rows of the same thing together, things in the order they were measured in.
fn by_key(ceilings: &[Ceiling]) -> Vec<(Key, Vec<&Ceiling>)> {
    let mut places: BTreeMap<Key, usize> = BTreeMap::new();
    let mut found: Vec<(Key, Vec<&Ceiling>)> = Vec::new();
    for ceiling in ceilings.iter().filter(|ceiling| ceiling.row.median.is_finite()) {
        let key = Key::of(&ceiling.row);
        let place = *places.entry(key.clone()).or_insert(found.len());
        if place == found.len() {
            found.push((key, Vec::new()));
        }
        found[place].1.push(ceiling);
    }
    found
}

/// How rates spread; `None` if there are none, or most are zero.
fn group(key: Key, mut rates: Vec<f64>, tolerance: f64) -> Option<Group> {
    rates.sort_by(f64::total_cmp);
    let (least, greatest) = (*rates.first()?, *rates.last()?);
    // Of an even number the upper one: half of the ranks reach it, so that a node that is half of
    // the job is not taken for the measure of itself.
    let median = rates[rates.len() / 2];
    if median <= 0.0 {
        return None;
    }
    let mut away: Vec<f64> = rates.iter().map(|rate| (rate - median).abs()).collect();
    away.sort_by(f64::total_cmp);
    // And the lower one: half of the ranks are not further away.
    let spread = away[(away.len() - 1) / 2];
    let limit = median - (tolerance.max(0.0) * median).max(FAR * spread);
    Some(Group { key, ranks: rates.len(), least, median, greatest, limit })
}

/// Who has no row where more than half of the ranks have one.
fn missing(ranks: &[(u32, String)], by_key: &[(Key, Vec<&Ceiling>)]) -> Vec<Missing> {
    let mut found: Vec<Missing> = ranks
        .iter()
        .map(|(rank, host)| Missing { rank: *rank, host: host.clone(), keys: Vec::new() })
        .collect();
    for (key, members) in by_key {
        let have: BTreeSet<u32> = members.iter().map(|ceiling| ceiling.rank).collect();
        if have.len() * 2 <= ranks.len() {
            continue;
        }
        for rank in found.iter_mut().filter(|rank| !have.contains(&rank.rank)) {
            rank.keys.push(key.clone());
        }
    }
    found.retain(|rank| !rank.keys.is_empty());
    found
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
