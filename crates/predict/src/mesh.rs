//! The device mesh: rank numbers and coordinates. No I/O.
//!
//! Tensor-parallel ranks, which communicate most, are adjacent; then context, data, and pipeline, which
//! communicates least.

use std::fmt;

use crate::shape::Shard;

/// Ranks per axis; their product is the world size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    /// Data-parallel replicas.
    pub dp: usize,
    /// Context-parallel ranks.
    pub cp: usize,
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Pipeline stages.
    pub pp: usize,
    /// Size of the sharding group (ZeRO, HSDP): adjacent ranks of the `dp * cp` data ranks.
    pub shard: usize,
}

/// The coordinates of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeshCoord {
    /// Data-parallel index.
    pub dp: usize,
    /// Context-parallel index.
    pub cp: usize,
    /// Tensor-parallel index.
    pub tp: usize,
    /// Pipeline stage.
    pub pp: usize,
}

impl Mesh {
    /// Data parallelism only.
    pub fn data_parallel(ranks: usize) -> Self {
        Self { dp: ranks, cp: 1, tp: 1, pp: 1, shard: ranks }
    }

    /// World size.
    pub fn ranks(&self) -> usize {
        self.dp * self.cp * self.tp * self.pp
    }

    /// Ranks with the same parameters and different tokens.
    pub fn data_ranks(&self) -> usize {
        self.dp * self.cp
    }

    /// Whether tensor, context or pipeline parallelism is in use.
    pub fn is_model_parallel(&self) -> bool {
        self.ranks() > self.dp
    }

    /// The coordinates of a rank.
    pub fn coord(&self, rank: usize) -> MeshCoord {
        let (tp, rest) = (rank % self.tp, rank / self.tp);
        let (cp, rest) = (rest % self.cp, rest / self.cp);
        MeshCoord { tp, cp, dp: rest % self.dp, pp: rest / self.dp }
    }

    /// A warning if a tensor-parallel group spans hosts, given the host of each rank: it communicates in
    /// every layer.
    pub fn cross_host_warning(&self, hosts: &[String]) -> Option<String> {
        let on_one_host = |group: &&[String]| group.iter().all(|host| *host == group[0]);
        let groups = || (0..).step_by(self.tp).zip(hosts.chunks(self.tp));
        let (first, group) = groups().find(|(_, group)| !on_one_host(group))?;
        let last = first + group.len() - 1;
        let mut names: Vec<&str> = group.iter().map(String::as_str).collect();
        names.dedup();
        let fits = |tp: &usize| {
            self.tp.is_multiple_of(*tp) && hosts.chunks(*tp).all(|group| on_one_host(&group))
        };
        let smaller = (1..self.tp).rev().find(fits).unwrap_or(1);
        Some(format!(
            "tensor-parallel ranks {first}-{last} span hosts {}, which is slow: use parallel.tp {smaller}, or \
             a multiple of {} ranks per host",
            names.join(", "),
            self.tp
        ))
    }

    /// The rank at these coordinates.
    pub fn rank(&self, coord: MeshCoord) -> usize {
        ((coord.pp * self.dp + coord.dp) * self.cp + coord.cp) * self.tp + coord.tp
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dp, cp, tp, pp, shard } = self;
        write!(f, "dp={dp} cp={cp} tp={tp} pp={pp} shard={shard}")
    }
}

impl MeshCoord {
    /// Its shard of tensor-parallel matrices.
    pub fn tensor_shard(&self, mesh: &Mesh) -> Shard {
        Shard { rank: self.tp, ranks: mesh.tp }
    }

    /// Its shard of each sequence.
    pub fn context_shard(&self, mesh: &Mesh) -> Shard {
        Shard { rank: self.cp, ranks: mesh.cp }
    }

    /// Its index among the ranks with the same parameters.
    pub fn data_rank(&self, mesh: &Mesh) -> usize {
        self.dp * mesh.cp + self.cp
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranks_and_coordinates_are_a_bijection(dp in 1usize..4, cp in 1usize..4, tp in 1usize..4, pp in 1usize..4) {
            let mesh = Mesh { dp, cp, tp, pp, shard: dp * cp };
            for rank in 0..mesh.ranks() {
                let coord = mesh.coord(rank);
                prop_assert!(coord.dp < dp && coord.cp < cp && coord.tp < tp && coord.pp < pp);
                prop_assert_eq!(mesh.rank(coord), rank);
            }
        }
    }

    #[test]
    fn tensor_groups_that_span_hosts_are_warned_about() {
        let hosts = |all: &str| all.chars().map(String::from).collect::<Vec<_>>();
        let mesh = |tp| Mesh { dp: 8 / tp, cp: 1, tp, pp: 1, shard: 8 / tp };
        assert_eq!(mesh(4).cross_host_warning(&hosts("aaaabbbb")), None);
        assert_eq!(mesh(1).cross_host_warning(&hosts("abababab")), None);
        let note = mesh(4).cross_host_warning(&hosts("aaaaaabb")).unwrap();
        assert!(note.starts_with("tensor-parallel ranks 4-7 span hosts a, b, "), "{note}");
        assert!(note.contains("use parallel.tp 2,"), "{note}");
        let note = mesh(2).cross_host_warning(&hosts("abababab")).unwrap();
        assert!(note.contains("use parallel.tp 1, or a multiple of 2 ranks"), "{note}");
    }

    #[test]
    fn tensor_parallel_ranks_are_adjacent() {
        let mesh = Mesh { dp: 2, cp: 1, tp: 2, pp: 2, shard: 2 };
        let coords: Vec<_> = (0..8).map(|rank| mesh.coord(rank)).collect();
        assert_eq!(coords.iter().map(|s| s.tp).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(coords.iter().map(|s| s.pp).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
    }
}
