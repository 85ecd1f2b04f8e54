//! Assignment of ranks to nodes.

/// The nodes of all ranks, from one rank's perspective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLayout {
    pub nodes: u32,
    /// This rank's node, numbered by first occurrence.
    pub node: u32,
    /// The ranks of this node.
    pub local_ranks: Vec<u32>,
    /// This rank's index among them.
    pub local_rank: u32,
    /// Whether all nodes have the same number of ranks.
    pub uniform: bool,
    /// Node and local rank of each rank.
    coords: Vec<(u32, u32)>,
}

impl NodeLayout {
    /// `nodes` has an arbitrary node id per rank.
    pub fn new(rank: u32, nodes: &[u64]) -> Self {
        let mut seen: Vec<(u64, u32)> = Vec::new();
        let mut coords = Vec::with_capacity(nodes.len());
        for node in nodes {
            let at = seen.iter().position(|(n, _)| n == node).unwrap_or(seen.len());
            if at == seen.len() {
                seen.push((*node, 0));
            }
            coords.push((at as u32, seen[at].1));
            seen[at].1 += 1;
        }
        let (node, local) = coords[rank as usize];
        let on_node = coords.iter().zip(0..).filter(|((n, _), _)| *n == node);
        Self {
            nodes: seen.len() as u32,
            node,
            local_ranks: on_node.map(|(_, rank)| rank).collect(),
            local_rank: local,
            uniform: seen.iter().all(|(_, ranks)| *ranks == seen[0].1),
            coords,
        }
    }

    pub fn ranks(&self) -> usize {
        self.coords.len()
    }

    /// The ranks with this local rank, in node order.
    pub fn rail(&self, local_rank: u32) -> Vec<u32> {
        let same = |(_, (_, local)): &(u32, &(u32, u32))| *local == local_rank;
        let mut ranks: Vec<(u32, u32)> =
            (0..).zip(&self.coords).filter(same).map(|(rank, (node, _))| (*node, rank)).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, rank)| rank).collect()
    }

    pub fn ranks_of(&self, node: u32) -> impl Iterator<Item = u32> {
        let on_node = move |((n, _), _): &(&(u32, u32), u32)| *n == node;
        self.coords.iter().zip(0..).filter(on_node).map(|(_, rank)| rank)
    }

    /// Whether every rank has a node of its own.
    pub fn is_one_rank_per_node(&self) -> bool {
        self.nodes as usize == self.coords.len()
    }

    pub fn is_on_this_node(&self, rank: u32) -> bool {
        self.coords(rank).0 == self.node
    }

    /// Node and local rank of a rank.
    pub fn coords(&self, rank: u32) -> (u32, u32) {
        self.coords[rank as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_first_occurrence() {
        let layout = NodeLayout::new(3, &[70, 70, 5, 70, 5]);
        assert_eq!((layout.nodes, layout.node, layout.local_rank), (2, 0, 2));
        assert_eq!((layout.local_ranks.as_slice(), layout.uniform), (&[0, 1, 3][..], false));
        assert_eq!(layout.coords(4), (1, 1));
        assert_eq!(NodeLayout::new(1, &[70, 70, 5, 70, 5]).rail(1), [1, 4]);
        assert_eq!(NodeLayout::new(0, &[1, 2, 2, 1]).rail(1), [3, 2]);
        assert!(NodeLayout::new(0, &[1, 2, 1, 2]).uniform);
    }
}
