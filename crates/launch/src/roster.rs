//! Which nodes of the allocation a job runs on, as some of them fail. No I/O.

/// The nodes of an allocation, by their position in it: those that the job runs on, spares, and
/// those that are not to be used again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    active: Vec<usize>,
    spares: Vec<usize>,
    bad: Vec<(usize, String)>,
    /// With fewer nodes the job does not go on.
    least: usize,
    /// The node of the rank that failed first the last time.
    suspect: Option<usize>,
}

/// Why there is no such roster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// No node is left to run on.
    #[error("--spares {spares} leaves no node of {nodes} to run on; keep fewer, or allocate more")]
    AllSpare {
        /// The nodes of the allocation.
        nodes: usize,
        /// How many of them should be spares.
        spares: usize,
    },
    /// The minimum is out of reach, or nothing.
    #[error(
        "--min-nodes {min} must be at least 1 and at most the {active} nodes that the job runs on"
    )]
    BadMinimum {
        /// The minimum.
        min: usize,
        /// The nodes that the job runs on.
        active: usize,
    },
}

/// Who is to blame for a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Blame {
    /// These nodes were lost: the agent died, or the link to it was cut.
    Lost(Vec<usize>),
    /// A rank failed, the first one on this node.
    Rank(usize),
    /// Nobody can tell: a hang, say.
    Nobody,
}

/// What becomes of the job's nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go on with the same nodes.
    Same,
    /// Go on, with these changes.
    Changed(Vec<Change>),
    /// There are too few nodes to go on; this is why.
    GiveUp(String),
}

/// A change of the job's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A spare takes the place of a bad node, so that ranks elsewhere keep their numbers.
    Replaced {
        /// The bad node.
        bad: usize,
        /// The spare that takes its place.
        by: usize,
    },
    /// The job goes on without a bad node; those behind it move up.
    Dropped {
        /// The bad node.
        bad: usize,
    },
}

impl Roster {
    /// A job on all nodes but the last `spares`. Without `min_nodes` it never runs on fewer.
    pub fn new(nodes: usize, spares: usize, min_nodes: Option<usize>) -> Result<Self, RosterError> {
        let active = nodes.saturating_sub(spares);
        if active == 0 {
            return Err(RosterError::AllSpare { nodes, spares });
        }
        let least = min_nodes.unwrap_or(active);
        if !(1..=active).contains(&least) {
            return Err(RosterError::BadMinimum { min: least, active });
        }
        Ok(Self {
            active: (0..active).collect(),
            spares: (active..nodes).collect(),
            bad: Vec::new(),
            least,
            suspect: None,
        })
    }

    /// The nodes the job runs on, in the order of their ranks.
    pub fn active(&self) -> &[usize] {
        &self.active
    }

    /// The nodes that could take the place of others, the next one first.
    pub fn spares(&self) -> &[usize] {
        &self.spares
    }

    /// The nodes not to be used again, with the reasons.
    pub fn bad(&self) -> &[(usize, String)] {
        &self.bad
    }

    /// These nodes never answered at the start.
    pub fn missing(&mut self, nodes: &[usize], why: &str) -> Verdict {
        self.exclude(nodes, why)
    }

    /// The job failed.
    pub fn failed(&mut self, blame: Blame) -> Verdict {
        let suspect = self.suspect.take();
        match blame {
            Blame::Lost(nodes) => self.exclude(&nodes, "it was lost"),
            Blame::Nobody => Verdict::Same,
            // A program's fault can come up anywhere. Twice on the same node it is rather the
            // node's; but a node that may be good is given up only where another can be had.
            Blame::Rank(node) if suspect == Some(node) && !self.spares.is_empty() => {
                self.exclude(&[node], "ranks on it were the first to fail twice in a row")
            }
            Blame::Rank(node) => {
                self.suspect = Some(node);
                Verdict::Same
            }
        }
    }

    /// Takes nodes out for good.
    fn exclude(&mut self, nodes: &[usize], why: &str) -> Verdict {
        // All of them first: a spare that was lost too must not come in.
        for &node in nodes {
            let ours = self.active.contains(&node) || self.spares.contains(&node);
            if ours && !self.bad.iter().any(|(bad, _)| *bad == node) {
                self.bad.push((node, why.to_owned()));
                self.spares.retain(|spare| *spare != node);
            }
        }
        let is_bad = |node: usize| self.bad.iter().any(|(bad, _)| *bad == node);
        let gone: Vec<usize> = self.active.iter().copied().filter(|&n| is_bad(n)).collect();
        let left = self.active.len() - gone.len().saturating_sub(self.spares.len());
        if gone.is_empty() {
            return Verdict::Same;
        }
        if left < self.least {
            return Verdict::GiveUp(self.too_few(left));
        }
        Verdict::Changed(gone.into_iter().map(|bad| self.replace(bad)).collect())
    }

    fn replace(&mut self, bad: usize) -> Change {
        if self.spares.is_empty() {
            self.active.retain(|node| *node != bad);
            return Change::Dropped { bad };
        }
        let by = self.spares.remove(0);
        for node in self.active.iter_mut().filter(|node| **node == bad) {
            *node = by;
        }
        Change::Replaced { bad, by }
    }

    fn too_few(&self, left: usize) -> String {
        let (least, bad) = (self.least, self.bad.len());
        format!(
            "{left} good nodes are left ({bad} bad) and the job needs {least}; more --spares, or a \
             smaller --min-nodes, would let it go on"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lost(nodes: &[usize]) -> Blame {
        Blame::Lost(nodes.to_vec())
    }

    #[test]
    fn a_lost_node_is_replaced_in_its_place() {
        let mut roster = Roster::new(6, 2, None).unwrap();
        assert_eq!((roster.active(), roster.spares()), (&[0, 1, 2, 3][..], &[4, 5][..]));
        let verdict = roster.failed(lost(&[1]));
        assert_eq!(verdict, Verdict::Changed(vec![Change::Replaced { bad: 1, by: 4 }]));
        assert_eq!(roster.active(), [0, 4, 2, 3]);
        assert_eq!(roster.bad(), [(1, "it was lost".to_owned())]);
        assert_eq!(roster.failed(lost(&[1])), Verdict::Same, "it is gone already");
        assert_eq!(roster.failed(lost(&[77])), Verdict::Same, "no node of ours");
    }

    #[test]
    fn without_a_spare_it_is_dropped_down_to_the_minimum() {
        let mut roster = Roster::new(4, 1, Some(2)).unwrap();
        let verdict = roster.missing(&[0, 2], "no answer");
        let changes = vec![Change::Replaced { bad: 0, by: 3 }, Change::Dropped { bad: 2 }];
        assert_eq!(verdict, Verdict::Changed(changes));
        assert_eq!(roster.active(), [3, 1]);
        let Verdict::GiveUp(why) = roster.failed(lost(&[3])) else { panic!() };
        assert!(why.contains("1 good nodes are left (3 bad) and the job needs 2"), "{why}");
    }

    #[test]
    fn a_spare_that_is_lost_with_a_node_does_not_replace_it() {
        let mut roster = Roster::new(4, 2, None).unwrap();
        let verdict = roster.failed(lost(&[0, 2]));
        assert_eq!(verdict, Verdict::Changed(vec![Change::Replaced { bad: 0, by: 3 }]));
        assert_eq!(roster.active(), [3, 1]);
        let mut roster = Roster::new(3, 1, None).unwrap();
        assert_eq!(roster.missing(&[2], "no answer"), Verdict::Same, "only a spare");
        assert!(roster.spares().is_empty());
        assert!(matches!(roster.failed(lost(&[0])), Verdict::GiveUp(_)));
    }

    #[test]
    fn a_rank_blames_its_node_the_second_time_in_a_row() {
        let mut roster = Roster::new(3, 1, None).unwrap();
        assert_eq!(roster.failed(Blame::Rank(1)), Verdict::Same);
        assert_eq!(roster.failed(Blame::Rank(0)), Verdict::Same);
        assert_eq!(roster.failed(Blame::Rank(1)), Verdict::Same);
        assert_eq!(roster.failed(Blame::Nobody), Verdict::Same);
        assert_eq!(roster.failed(Blame::Rank(1)), Verdict::Same, "not in a row");
        let verdict = roster.failed(Blame::Rank(1));
        assert_eq!(verdict, Verdict::Changed(vec![Change::Replaced { bad: 1, by: 2 }]));
        for _ in 0..3 {
            assert_eq!(roster.failed(Blame::Rank(0)), Verdict::Same, "no spare is left");
        }
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let error = |nodes, spares, min| Roster::new(nodes, spares, min).unwrap_err().to_string();
        assert!(error(2, 2, None).contains("--spares 2 leaves no node of 2"));
        assert!(error(0, 0, None).contains("--spares 0"));
        assert!(error(4, 1, Some(4)).contains("--min-nodes 4"));
        assert!(error(4, 1, Some(0)).contains("at least 1"));
    }

    fn blame() -> impl Strategy<Value = Blame> {
        prop_oneof![
            proptest::collection::vec(0usize..12, 0..4).prop_map(Blame::Lost),
            (0usize..12).prop_map(Blame::Rank),
            Just(Blame::Nobody),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens(
            nodes in 1usize..10, spares in 0usize..4, min in 1usize..5,
            blames in proptest::collection::vec(blame(), 0..12),
        ) {
            let Ok(mut roster) = Roster::new(nodes, spares, Some(min)) else { return Ok(()) };
            for blame in blames {
                let before = roster.clone();
                let verdict = roster.failed(blame);
                let mut all: Vec<usize> = [roster.active(), roster.spares()].concat();
                let mut known = all.clone();
                known.extend(roster.bad().iter().map(|(n, _)| *n));
                known.sort_unstable();
                known.dedup();
                prop_assert_eq!(&known, &(0..nodes).collect::<Vec<_>>(), "no node is forgotten");
                all.sort_unstable();
                prop_assert!(all.windows(2).all(|w| w[0] < w[1]), "no node twice: {:?}", all);
                prop_assert!(roster.active().len() >= min);
                prop_assert!(roster.bad().starts_with(before.bad()), "bad is bad for ever");
                if matches!(verdict, Verdict::GiveUp(_)) {
                    return Ok(());
                }
                let is_bad = |n: &usize| roster.bad().iter().any(|(b, _)| b == n);
                prop_assert!(!roster.active().iter().chain(roster.spares()).any(is_bad));
                prop_assert_eq!(verdict == Verdict::Same, roster.active() == before.active());
                if roster.active().len() == before.active().len() {
                    for (old, new) in before.active().iter().zip(roster.active()) {
                        prop_assert!(old == new || is_bad(old), "good nodes keep their places");
                    }
                }
                let kept = |r: &Roster| -> Vec<usize> {
                    before.active().iter().copied().filter(|n| r.active().contains(n)).collect()
                };
                let order: Vec<usize> =
                    roster.active().iter().copied().filter(|n| before.active().contains(n)).collect();
                prop_assert_eq!(kept(&roster), order, "and their order");
            }
        }
    }
}
