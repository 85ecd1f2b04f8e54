//! Splits cores among ranks with the same NUMA affinity.

use regatta_model::CpuSet;

/// An assignable core.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FreeCore {
    /// Its usable hardware threads.
    pub cpus: CpuSet,
    pub numa: Option<u32>,
    pub l3: Option<u32>,
}

/// The granularity of a split, for the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Granularity {
    /// All cores to one rank.
    All,
    /// Whole L3 groups per rank.
    WholeL3,
    /// Several ranks per L3 group, none across two.
    WithinL3,
    /// Contiguous cores across L3 groups.
    Contiguous,
}

type Groups = Vec<Vec<FreeCore>>;

/// Splits `cores` into `ranks` equal shares of at most `max` cores. A remainder stays idle, because
/// a rank with one core more would only wait for the others.
///
/// Requires at least one core per rank.
pub(crate) fn split(cores: &[FreeCore], ranks: usize, max: usize) -> (Groups, Granularity) {
    let limit = |share: &[FreeCore]| share[..share.len().min(max)].to_vec();
    if ranks == 1 {
        return (vec![limit(cores)], Granularity::All);
    }
    let groups = l3_groups(cores);
    let equal = groups.iter().all(|g| g.len() == groups[0].len());
    if equal && groups.len().is_multiple_of(ranks) {
        let each = groups.len() / ranks;
        let shares = groups.chunks(each).map(|chunk| limit(&chunk.concat())).collect();
        return (shares, Granularity::WholeL3);
    }
    let per_group = ranks / groups.len();
    if equal && ranks.is_multiple_of(groups.len()) && groups[0].len() >= per_group {
        let size = groups[0].len() / per_group;
        let cut = |group: &Vec<FreeCore>| {
            group.chunks(size).take(per_group).map(limit).collect::<Vec<_>>()
        };
        return (groups.iter().flat_map(cut).collect(), Granularity::WithinL3);
    }
    let size = cores.len() / ranks;
    (cores.chunks(size).take(ranks).map(limit).collect(), Granularity::Contiguous)
}

/// The cores by L3 group, ordered by the first core of each group.
fn l3_groups(cores: &[FreeCore]) -> Groups {
    let mut groups = Groups::new();
    for core in cores {
        match groups.iter_mut().find(|g| g[0].l3 == core.l3) {
            Some(group) => group.push(core.clone()),
            None => groups.push(vec![core.clone()]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cores 0, 1, 2, ... in L3 groups of these sizes.
    fn cores(groups: &[usize]) -> Vec<FreeCore> {
        let l3 = groups.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i as u32, n));
        let core =
            |(cpu, l3)| FreeCore { cpus: CpuSet::range(cpu, cpu), numa: Some(0), l3: Some(l3) };
        l3.enumerate().map(core).collect()
    }

    fn split_groups(groups: &[usize], ranks: usize) -> (String, Granularity) {
        let (shares, granularity) = split(&cores(groups), ranks, usize::MAX);
        let format = |share: &Vec<FreeCore>| {
            share.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus)).to_string()
        };
        (shares.iter().map(format).collect::<Vec<_>>().join(" "), granularity)
    }

    #[test]
    fn l3_groups_are_kept_whole_if_divisible() {
        assert_eq!(split_groups(&[7, 7], 2), ("0-6 7-13".into(), Granularity::WholeL3));
        assert_eq!(split_groups(&[4, 4, 4, 4], 2), ("0-7 8-15".into(), Granularity::WholeL3));
    }

    #[test]
    fn several_ranks_share_an_l3_group() {
        let shares = "0-2 3-5 7-9 10-12".into();
        assert_eq!(split_groups(&[7, 7], 4), (shares, Granularity::WithinL3));
    }

    #[test]
    fn remainder_stays_idle() {
        let shares = "0-7 8-15 16-23 24-31 32-39 40-47".into();
        assert_eq!(split_groups(&[51], 6), (shares, Granularity::WithinL3));
        assert_eq!(split_groups(&[8, 8, 8], 2), ("0-11 12-23".into(), Granularity::Contiguous));
    }
}
