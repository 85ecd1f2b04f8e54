//! How ranks are laid out: each has a seat on every axis. No I/O.
//!
//! Tensor-parallel ranks, which talk most, are neighbours; then context, data, and pipeline, which
//! talks least and may be farthest apart.

use std::fmt;

use crate::shape::Share;

/// How many ranks there are on each axis; their product is all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    /// Copies of the model, each with a part of the batch.
    pub dp: usize,
    /// Ranks that share each sequence.
    pub cp: usize,
    /// Ranks that share each matrix.
    pub tp: usize,
    /// Stages that share the layers.
    pub pp: usize,
    /// Ranks among which sharded state is shared, neighbours of `dp * cp`; the others repeat it.
    pub shard: usize,
}

/// A rank's place on each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Which copy of the model.
    pub dp: usize,
    /// Which part of each sequence.
    pub cp: usize,
    /// Which part of each matrix.
    pub tp: usize,
    /// Which stage.
    pub pp: usize,
}

impl Mesh {
    /// Data parallelism alone.
    pub fn data(ranks: usize) -> Self {
        Self { dp: ranks, cp: 1, tp: 1, pp: 1, shard: ranks }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.dp * self.cp * self.tp * self.pp
    }

    /// Ranks that have the same parameters, and see different tokens.
    pub fn data_ranks(&self) -> usize {
        self.dp * self.cp
    }

    /// Whether ranks share the model: none of them can compute with it alone.
    pub fn is_shared(&self) -> bool {
        self.ranks() > self.dp
    }

    /// Where a rank sits.
    pub fn seat(&self, rank: usize) -> Seat {
        let (tp, rest) = (rank % self.tp, rank / self.tp);
        let (cp, rest) = (rest % self.cp, rest / self.cp);
        Seat { tp, cp, dp: rest % self.dp, pp: rest / self.dp }
    }

    /// What to say if ranks that share matrices are on different hosts, given the host of each rank.
    /// They talk in every layer, and nothing between hosts is as fast as memory.
    pub fn apart(&self, hosts: &[String]) -> Option<String> {
        let together = |group: &&[String]| group.iter().all(|host| *host == group[0]);
        let groups = || (0..).step_by(self.tp).zip(hosts.chunks(self.tp));
        let (first, group) = groups().find(|(_, group)| !together(group))?;
        let last = first + group.len() - 1;
        let mut names: Vec<&str> = group.iter().map(String::as_str).collect();
        names.dedup();
        let fits = |tp: &usize| {
            self.tp.is_multiple_of(*tp) && hosts.chunks(*tp).all(|group| together(&group))
        };
        let fewer = (1..self.tp).rev().find(fits).unwrap_or(1);
        Some(format!(
            "ranks {first}-{last} share matrices and are on {}: a split that crosses hosts is slow, \
             parallel.tp {fewer} would not, nor would a multiple of {} ranks on every host",
            names.join(", "),
            self.tp
        ))
    }

    /// Who sits there.
    pub fn rank(&self, seat: Seat) -> usize {
        ((seat.pp * self.dp + seat.dp) * self.cp + seat.cp) * self.tp + seat.tp
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dp, cp, tp, pp, shard } = self;
        write!(f, "dp={dp} cp={cp} tp={tp} pp={pp} shard={shard}")
    }
}

impl Seat {
    /// What a rank has of each matrix.
    pub fn tensor_share(&self, mesh: &Mesh) -> Share {
        Share { rank: self.tp, ranks: mesh.tp }
    }

    /// What a rank has of each sequence.
    pub fn context_share(&self, mesh: &Mesh) -> Share {
        Share { rank: self.cp, ranks: mesh.cp }
    }

    /// Its number among the ranks with the same parameters.
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
        fn every_rank_has_a_seat_of_its_own(dp in 1usize..4, cp in 1usize..4, tp in 1usize..4, pp in 1usize..4) {
            let mesh = Mesh { dp, cp, tp, pp, shard: dp * cp };
            for rank in 0..mesh.ranks() {
                let seat = mesh.seat(rank);
                prop_assert!(seat.dp < dp && seat.cp < cp && seat.tp < tp && seat.pp < pp);
                prop_assert_eq!(mesh.rank(seat), rank);
            }
        }
    }

    #[test]
    fn tensor_ranks_on_different_hosts_are_named() {
        let hosts = |all: &str| all.chars().map(String::from).collect::<Vec<_>>();
        let mesh = |tp| Mesh { dp: 8 / tp, cp: 1, tp, pp: 1, shard: 8 / tp };
        assert_eq!(mesh(4).apart(&hosts("aaaabbbb")), None);
        assert_eq!(mesh(1).apart(&hosts("abababab")), None);
        let note = mesh(4).apart(&hosts("aaaaaabb")).unwrap();
        assert!(note.starts_with("ranks 4-7 share matrices and are on a, b: "), "{note}");
        assert!(note.contains("parallel.tp 2 would not"), "{note}");
        let note = mesh(2).apart(&hosts("abababab")).unwrap();
        assert!(note.contains("parallel.tp 1 would not, nor would a multiple of 2"), "{note}");
    }

    #[test]
    fn tensor_ranks_are_neighbours() {
        let mesh = Mesh { dp: 2, cp: 1, tp: 2, pp: 2, shard: 2 };
        let seats: Vec<_> = (0..8).map(|rank| mesh.seat(rank)).collect();
        assert_eq!(seats.iter().map(|s| s.tp).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(seats.iter().map(|s| s.pp).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
    }
}
