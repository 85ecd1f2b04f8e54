//! Divides cores among ranks that are equally close to them.

use regatta_model::CpuSet;

/// A core that may be handed out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FreeCore {
    /// The hardware threads of it that may be used.
    pub cpus: CpuSet,
    pub numa: Option<u32>,
    pub l3: Option<u32>,
}

/// How the shares were cut, for the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// One rank had all of them.
    Whole,
    /// Each rank has whole L3 groups.
    WholeL3,
    /// Several ranks in each L3 group, none across two.
    InsideL3,
    /// Consecutive cores, whatever the L3 groups.
    Consecutive,
}

/// Cuts `cores` into `ranks` shares of equal size, each at most `most` cores. What does not divide
/// stays idle: a rank with one thread more than the others would only wait for them.
///
/// The caller sees to it that there is at least one core a rank.
pub(crate) fn split(cores: &[FreeCore], ranks: usize, most: usize) -> (Vec<Vec<FreeCore>>, Cut) {
    let limit = |share: &[FreeCore]| share[..share.len().min(most)].to_vec();
    if ranks == 1 {
        return (vec![limit(cores)], Cut::Whole);
    }
    let groups = l3_groups(cores);
    let equal = groups.iter().all(|g| g.len() == groups[0].len());
    if equal && groups.len().is_multiple_of(ranks) {
        let each = groups.len() / ranks;
        let shares = groups.chunks(each).map(|chunk| limit(&chunk.concat())).collect();
        return (shares, Cut::WholeL3);
    }
    let in_each = ranks / groups.len();
    if equal && ranks.is_multiple_of(groups.len()) && groups[0].len() >= in_each {
        let size = groups[0].len() / in_each;
        let cut =
            |group: &Vec<FreeCore>| group.chunks(size).take(in_each).map(limit).collect::<Vec<_>>();
        return (groups.iter().flat_map(cut).collect(), Cut::InsideL3);
    }
    let size = cores.len() / ranks;
    (cores.chunks(size).take(ranks).map(limit).collect(), Cut::Consecutive)
}

/// The cores by L3 group, groups in the order of their first core.
fn l3_groups(cores: &[FreeCore]) -> Vec<Vec<FreeCore>> {
    let mut groups: Vec<Vec<FreeCore>> = Vec::new();
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

    /// Cores 0, 1, 2, … in L3 groups of the given sizes.
    fn cores(groups: &[usize]) -> Vec<FreeCore> {
        let l3 = groups.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i as u32, n));
        let core =
            |(cpu, l3)| FreeCore { cpus: CpuSet::range(cpu, cpu), numa: Some(0), l3: Some(l3) };
        l3.enumerate().map(core).collect()
    }

    fn cut(groups: &[usize], ranks: usize) -> (Vec<String>, Cut) {
        let (shares, how) = split(&cores(groups), ranks, usize::MAX);
        let spell = |share: &Vec<FreeCore>| {
            share.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus)).to_string()
        };
        (shares.iter().map(spell).collect(), how)
    }

    #[test]
    fn whole_groups_where_they_divide() {
        assert_eq!(cut(&[7, 7], 2), (vec!["0-6".into(), "7-13".into()], Cut::WholeL3));
        assert_eq!(cut(&[4, 4, 4, 4], 2), (vec!["0-7".into(), "8-15".into()], Cut::WholeL3));
    }

    #[test]
    fn several_ranks_inside_a_group() {
        let (shares, how) = cut(&[7, 7], 4);
        assert_eq!((shares.join(" "), how), ("0-2 3-5 7-9 10-12".into(), Cut::InsideL3));
    }

    #[test]
    fn what_does_not_divide_stays_idle() {
        let (shares, how) = cut(&[51], 6);
        assert_eq!(shares.join(" "), "0-7 8-15 16-23 24-31 32-39 40-47");
        assert_eq!(how, Cut::InsideL3);
        let (shares, how) = cut(&[8, 8, 8], 2);
        assert_eq!((shares.join(" "), how), ("0-11 12-23".into(), Cut::Consecutive));
    }
}
