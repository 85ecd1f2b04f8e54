//! Notes about hosts, cores and kernels of the ranks. No I/O.

use std::collections::BTreeMap;

use regatta_model::CpuSet;

use super::event::RankInfo;

/// Notes worth reporting.
pub fn notes(ranks: &[RankInfo]) -> Vec<String> {
    let mut hosts: BTreeMap<&str, Vec<&RankInfo>> = BTreeMap::new();
    for rank in ranks {
        hosts.entry(&rank.host).or_default().push(rank);
    }
    let shared = hosts.iter().filter_map(|(host, ranks)| oversubscribed(host, ranks));
    shared.chain(mixed_kernels(ranks)).collect()
}

/// Ranks of a host with more threads than cores.
fn oversubscribed(host: &str, ranks: &[&RankInfo]) -> Option<String> {
    let overlaps =
        |a: &RankInfo| ranks.iter().any(|b| a.rank != b.rank && a.cpus.intersects(&b.cpus));
    let sharing: Vec<&&RankInfo> = ranks.iter().filter(|rank| overlaps(rank)).collect();
    let cpus = sharing.iter().fold(CpuSet::new(), |all, rank| all.union(&rank.cpus));
    let threads: usize = sharing.iter().map(|rank| rank.threads).sum();
    let ranks: CpuSet = sharing.iter().map(|rank| rank.rank as usize).collect();
    let cores = if cpus.len() == 1 { "core" } else { "cores" };
    (threads > cpus.len()).then(|| {
        format!(
            "ranks {ranks} on {host} run {threads} threads on {cores} {cpus}: use fewer ranks (-n) or threads \
            (train.threads)"
        )
    })
}

/// A rank whose kernels differ from the majority's: the slowest rank limits all.
fn mixed_kernels(ranks: &[RankInfo]) -> Option<String> {
    let all: Vec<&str> = ranks.iter().map(|rank| rank.kernels.as_str()).collect();
    let most_common = most_common(&all)?;
    let mismatched = ranks.iter().find(|rank| rank.kernels != *most_common)?;
    let RankInfo { rank, host, kernels, .. } = mismatched;
    Some(format!(
        "rank {rank} on {host} has {kernels}, most ranks have {most_common}: the slowest rank limits all"
    ))
}

/// The most common value; in a tie, the first.
pub fn most_common<T: Ord>(all: &[T]) -> Option<&T> {
    let mut counts: BTreeMap<&T, (usize, usize)> = BTreeMap::new();
    for (first, one) in all.iter().enumerate() {
        counts.entry(one).or_insert((0, all.len() - first)).0 += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(one, _)| one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(rank: u32, host: &str, cpus: &str, threads: usize, kernels: &str) -> RankInfo {
        let (host, kernels) = (host.to_owned(), kernels.to_owned());
        RankInfo { rank, host, cpus: cpus.parse().unwrap(), threads, kernels }
    }

    #[test]
    fn ranks_with_enough_cores_are_not_noted() {
        let own = [info(0, "a", "0-1", 2, "avx512"), info(1, "a", "2-3", 2, "avx512")];
        assert_eq!(notes(&own), Vec::<String>::new());
        let on_two_hosts = [info(0, "a", "0-1", 2, "avx512"), info(1, "b", "0-1", 2, "avx512")];
        assert_eq!(notes(&on_two_hosts), Vec::<String>::new());
        let enough = [info(0, "a", "0-3", 2, "avx512"), info(1, "a", "0-3", 2, "avx512")];
        assert_eq!(notes(&enough), Vec::<String>::new());
        assert_eq!(notes(&[]), Vec::<String>::new());
    }

    #[test]
    fn oversubscribed_ranks_are_noted() {
        let mut all: Vec<RankInfo> = (0..3).map(|rank| info(rank, "a", "0-1", 1, "avx2")).collect();
        all.push(info(3, "a", "2", 1, "avx2"));
        let [note] = &notes(&all)[..] else { panic!("{:?}", notes(&all)) };
        assert!(note.starts_with("ranks 0-2 on a run 3 threads on cores 0-1"));
    }

    #[test]
    fn a_rank_with_different_kernels_is_noted() {
        let mut all: Vec<_> = (0..4).map(|rank| info(rank, "a", "0-3", 1, "avx512")).collect();
        all[0].kernels = "avx2".to_owned();
        let [note] = &notes(&all)[..] else { panic!("{:?}", notes(&all)) };
        assert!(note.starts_with("rank 0 on a has avx2, most ranks have avx512"), "{note}");
    }

    #[test]
    fn most_common_prefers_the_first_in_a_tie() {
        assert_eq!(most_common(&["b", "a"]), Some(&"b"));
        assert_eq!(most_common(&["b", "a", "a"]), Some(&"a"));
        assert_eq!(most_common::<u8>(&[]), None);
    }
}
