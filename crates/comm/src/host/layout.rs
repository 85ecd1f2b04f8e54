//! Which ranks share a node.

/// A rank's place among the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// How many nodes there are.
    pub nodes: u32,
    /// This rank's, in the order of their first ranks.
    pub node: u32,
    /// The ranks of this node.
    pub members: Vec<u32>,
    /// This rank's place among them.
    pub local: u32,
    /// Whether all nodes have the same number of ranks.
    pub even: bool,
    /// The node of each rank, and its place there.
    places: Vec<(u32, u32)>,
}

impl Layout {
    /// From the number of each rank's node, whatever these numbers are.
    pub fn new(rank: u32, nodes: &[u64]) -> Self {
        let mut seen: Vec<(u64, u32)> = Vec::new();
        let mut places = Vec::with_capacity(nodes.len());
        for node in nodes {
            let at = seen.iter().position(|(n, _)| n == node).unwrap_or(seen.len());
            if at == seen.len() {
                seen.push((*node, 0));
            }
            places.push((at as u32, seen[at].1));
            seen[at].1 += 1;
        }
        let (node, local) = places[rank as usize];
        let here = places.iter().zip(0..).filter(|((n, _), _)| *n == node);
        Self {
            nodes: seen.len() as u32,
            node,
            members: here.map(|(_, rank)| rank).collect(),
            local,
            even: seen.iter().all(|(_, ranks)| *ranks == seen[0].1),
            places,
        }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.places.len()
    }

    /// The ranks with which this one meets across nodes: those with its place on theirs.
    pub fn across(&self) -> Vec<u32> {
        self.column(self.local)
    }

    /// The ranks with this place on their nodes, in the order of nodes.
    pub fn column(&self, place: u32) -> Vec<u32> {
        let same = |(_, (_, local)): &(u32, &(u32, u32))| *local == place;
        let mut ranks: Vec<(u32, u32)> =
            (0..).zip(&self.places).filter(same).map(|(rank, (node, _))| (*node, rank)).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, rank)| rank).collect()
    }

    /// The ranks of a node.
    pub fn ranks_of(&self, node: u32) -> impl Iterator<Item = u32> {
        let here = move |((n, _), _): &(&(u32, u32), u32)| *n == node;
        self.places.iter().zip(0..).filter(here).map(|(_, rank)| rank)
    }

    /// Whether no two ranks share a node.
    pub fn is_flat(&self) -> bool {
        self.nodes as usize == self.places.len()
    }

    /// Whether a rank is on this node.
    pub fn is_here(&self, rank: u32) -> bool {
        self.place(rank).0 == self.node
    }

    /// A rank's node, and its place there.
    pub fn place(&self, rank: u32) -> (u32, u32) {
        self.places[rank as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_first_ranks() {
        let layout = Layout::new(3, &[70, 70, 5, 70, 5]);
        assert_eq!((layout.nodes, layout.node, layout.local), (2, 0, 2));
        assert_eq!((layout.members.as_slice(), layout.even), (&[0, 1, 3][..], false));
        assert_eq!(layout.place(4), (1, 1));
        assert_eq!(Layout::new(1, &[70, 70, 5, 70, 5]).across(), [1, 4]);
        assert_eq!(Layout::new(0, &[1, 2, 2, 1]).column(1), [3, 2]);
        assert!(Layout::new(0, &[1, 2, 1, 2]).even);
    }
}
