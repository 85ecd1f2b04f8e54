//! What is worth a look in what ranks have. No I/O.

use std::collections::BTreeMap;

use regatta_model::CpuSet;

use super::part::Place;

/// What is worth a look.
pub fn notes(places: &[Place]) -> Vec<String> {
    let mut hosts: BTreeMap<&str, Vec<&Place>> = BTreeMap::new();
    for place in places {
        hosts.entry(&place.host).or_default().push(place);
    }
    let shared = hosts.iter().filter_map(|(host, ranks)| crowded(host, ranks));
    shared.chain(unlike(places)).collect()
}

/// Ranks of a host that have fewer processors together than threads.
fn crowded(host: &str, places: &[&Place]) -> Option<String> {
    let meets = |a: &Place| places.iter().any(|b| a.rank != b.rank && a.cpus.intersects(&b.cpus));
    let sharing: Vec<&&Place> = places.iter().filter(|place| meets(place)).collect();
    let cpus = sharing.iter().fold(CpuSet::new(), |all, place| all.union(&place.cpus));
    let threads: usize = sharing.iter().map(|place| place.threads).sum();
    let ranks: CpuSet = sharing.iter().map(|place| place.rank as usize).collect();
    (threads > cpus.len()).then(|| {
        format!(
            "ranks {ranks} on {host} share cores {cpus}, fewer than their {threads} threads: fewer \
             ranks (-n) or threads (train.threads) are faster"
        )
    })
}

/// A rank that has something else than the most, whom it slows down, or the other way round.
fn unlike(places: &[Place]) -> Option<String> {
    let all: Vec<&str> = places.iter().map(|place| place.kernels.as_str()).collect();
    let usual = usual(&all)?;
    let odd = places.iter().find(|place| place.kernels != *usual)?;
    let Place { rank, host, kernels, .. } = odd;
    Some(format!(
        "rank {rank} on {host} has {kernels}, most have {usual}: the slowest sets the pace"
    ))
}

/// What most say; of several, what is said first.
pub fn usual<T: Ord>(all: &[T]) -> Option<&T> {
    let mut counts: BTreeMap<&T, (usize, usize)> = BTreeMap::new();
    for (first, one) in all.iter().enumerate() {
        counts.entry(one).or_insert((0, all.len() - first)).0 += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(one, _)| one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: u32, host: &str, cpus: &str, threads: usize, kernels: &str) -> Place {
        let (host, kernels) = (host.to_owned(), kernels.to_owned());
        Place { rank, host, cpus: cpus.parse().unwrap(), threads, kernels }
    }

    #[test]
    fn ranks_with_cores_of_their_own_are_in_order() {
        let own = [place(0, "a", "0-1", 2, "avx512"), place(1, "a", "2-3", 2, "avx512")];
        assert_eq!(notes(&own), Vec::<String>::new());
        let elsewhere = [place(0, "a", "0-1", 2, "avx512"), place(1, "b", "0-1", 2, "avx512")];
        assert_eq!(notes(&elsewhere), Vec::<String>::new());
        let enough = [place(0, "a", "0-3", 2, "avx512"), place(1, "a", "0-3", 2, "avx512")];
        assert_eq!(notes(&enough), Vec::<String>::new());
        assert_eq!(notes(&[]), Vec::<String>::new());
    }

    #[test]
    fn ranks_that_share_cores_are_named() {
        let mut all: Vec<Place> = (0..3).map(|rank| place(rank, "a", "0-1", 1, "avx2")).collect();
        all.push(place(3, "a", "2", 1, "avx2"));
        let [note] = &notes(&all)[..] else { panic!("{:?}", notes(&all)) };
        assert!(note.starts_with("ranks 0-2 on a share cores 0-1, fewer than their 3 threads"));
    }

    #[test]
    fn a_rank_that_has_less_than_the_others_is_named() {
        let mut all: Vec<Place> = (0..4).map(|rank| place(rank, "a", "0-3", 1, "avx512")).collect();
        all[0].kernels = "avx2".to_owned();
        let [note] = &notes(&all)[..] else { panic!("{:?}", notes(&all)) };
        assert!(note.starts_with("rank 0 on a has avx2, most have avx512"), "{note}");
    }

    #[test]
    fn of_two_that_differ_the_first_counts() {
        assert_eq!(usual(&["b", "a"]), Some(&"b"));
        assert_eq!(usual(&["b", "a", "a"]), Some(&"a"));
        assert_eq!(usual::<u8>(&[]), None);
    }
}
