//! Selects from a table, given NCCL's cost table of a call.
//!
//! All ranks of a communicator must select the same, or they wait for each other forever. So a selection
//! depends only on what is equal on all ranks: the table, the collective, and NCCL's costs. Whether buffers
//! are registered is not: each rank knows that of its own.

use crate::{Algorithm, Choice, Communicator, Function, Protocol, SizeRange, Table};

/// NCCL multiplies costs by 1024 to avoid an algorithm without forbidding it: rings of many ranks lose
/// precision in fp8. A table is measured in other types, so an entry this much above the lowest is kept.
const RELEGATED: f32 = 100.0;

/// The rows of a table for one size of communicator, by collective.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    by_function: [Vec<(SizeRange, Choice)>; Function::ALL.len()],
}

impl Rules {
    /// The rows for a communicator.
    pub fn new(table: &Table, communicator: Communicator) -> Self {
        let mut rules = Self::default();
        for row in table.rows.iter().filter(|row| row.communicator == communicator) {
            rules.by_function[row.function as usize].push((row.sizes, row.choice));
        }
        rules
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_function.iter().all(Vec::is_empty)
    }
}

/// A call that NCCL selects an algorithm for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The collective.
    pub function: Function,
    /// Bytes of a rank's largest buffer.
    pub bytes: u64,
    /// Whether the call is several operations of a group.
    pub is_aggregated: bool,
}

/// NCCL's estimated costs of a call, by algorithm and protocol.
#[derive(Debug)]
pub struct CostTable<'a> {
    /// Row by row; negative: not available.
    pub costs: &'a mut [f32],
    /// Entries of a row.
    pub protocols: usize,
}

impl CostTable<'_> {
    fn index(&self, algorithm: Algorithm, protocol: Protocol) -> Option<usize> {
        let (algorithm, protocol) = (algorithm as usize, protocol as usize);
        let index = algorithm.checked_mul(self.protocols)?.checked_add(protocol)?;
        (protocol < self.protocols && index < self.costs.len()).then_some(index)
    }

    fn cost(&self, choice: Choice) -> Option<f32> {
        let cost = self.costs[self.index(choice.algorithm, choice.protocol)?];
        (cost >= 0.0).then_some(cost)
    }

    /// The numbers of the algorithm and the protocol that NCCL selects: the first with the lowest cost.
    pub fn lowest(&self) -> Option<(usize, usize)> {
        let available = self.costs.iter().enumerate().filter(|(_, cost)| **cost >= 0.0);
        let (index, _) = available.min_by(|a, b| a.1.total_cmp(b.1))?;
        Some((index / self.protocols, index % self.protocols))
    }

    fn lowest_cost(&self) -> f32 {
        self.costs.iter().copied().filter(|cost| *cost >= 0.0).fold(f32::INFINITY, f32::min)
    }

    /// Makes a choice the cheapest. Entries that are not available stay.
    pub fn choose(&mut self, choice: Choice) {
        if let Some(index) = self.index(choice.algorithm, choice.protocol)
            && self.costs[index] >= 0.0
        {
            self.costs[index] = 0.0;
        }
    }
}

/// What a tuner does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The choice of the table.
    Chosen(Choice),
    /// NCCL's own choice stands.
    Kept(Reason),
}

/// Why NCCL's own choice stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The table has no row for the collective and the size.
    NoRow,
    /// The table is measured with single operations.
    Aggregated,
    /// NCCL cannot use the choice of the table in this communicator.
    Unavailable(Choice),
    /// NCCL avoids the choice of the table for this call.
    Relegated(Choice),
}

/// Selects from the table: the first row for the call whose choice is available.
pub fn select(rules: &Rules, call: Call, costs: &CostTable<'_>) -> Decision {
    let rows = &rules.by_function[call.function as usize];
    let mut matching = rows.iter().filter(|(sizes, _)| sizes.contains(call.bytes)).peekable();
    let Some((_, first)) = matching.peek() else { return Decision::Kept(Reason::NoRow) };
    if call.is_aggregated {
        return Decision::Kept(Reason::Aggregated);
    }
    let mut reason = Reason::Unavailable(*first);
    let limit = costs.lowest_cost() * RELEGATED;
    for (_, choice) in matching {
        match costs.cost(*choice) {
            Some(cost) if cost <= limit || cost == 0.0 => return Decision::Chosen(*choice),
            Some(_) => reason = Reason::Relegated(*choice),
            None => {}
        }
    }
    Decision::Kept(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str = "regatta-nccl-tuning 1
all-reduce ranks=16 nodes=2 bytes=64..1023 tree ll128 channels=2
all-reduce ranks=16 nodes=2 bytes=64..4095 tree ll
all-reduce ranks=8 nodes=1 bytes=0..18446744073709551615 ring simple
";
    const PROTOCOLS: usize = 3;

    fn rules(ranks: u32, nodes: u32) -> Rules {
        Rules::new(&TABLE.parse().unwrap(), Communicator { ranks, nodes })
    }

    fn call(bytes: u64) -> Call {
        let function = Function::AllReduce;
        Call { function, bytes, is_aggregated: false }
    }

    /// Costs by algorithm and protocol: ring LL is the lowest.
    fn costs() -> [f32; 21] {
        let mut costs = [-1.0; 21];
        costs[..6].copy_from_slice(&[20.0, 30.0, 40.0, 10.0, 50.0, 60.0]);
        costs
    }

    fn selected(rules: &Rules, call: Call, mut costs: [f32; 21]) -> Decision {
        select(rules, call, &CostTable { costs: &mut costs, protocols: PROTOCOLS })
    }

    fn tree(protocol: Protocol, channels: u8) -> Choice {
        Choice { algorithm: Algorithm::Tree, protocol, channels }
    }

    #[test]
    fn the_first_available_row_applies() {
        let rules = rules(16, 2);
        let chosen = |bytes| selected(&rules, call(bytes), costs());
        assert_eq!(chosen(64), Decision::Chosen(tree(Protocol::Ll128, 2)));
        assert_eq!(chosen(1024), Decision::Chosen(tree(Protocol::Ll, 0)));
        assert_eq!(chosen(63), Decision::Kept(Reason::NoRow));
        assert_eq!(chosen(4096), Decision::Kept(Reason::NoRow));
        let mut costs = costs();
        costs[1] = -1.0;
        let found = selected(&rules, call(64), costs);
        assert_eq!(found, Decision::Chosen(tree(Protocol::Ll, 0)), "LL128 is not available");
        costs[0] = -1.0;
        let found = selected(&rules, call(64), costs);
        assert_eq!(found, Decision::Kept(Reason::Unavailable(tree(Protocol::Ll128, 2))));
        let reduce = Call { function: Function::Reduce, ..call(64) };
        assert_eq!(selected(&rules, reduce, costs), Decision::Kept(Reason::NoRow));
    }

    #[test]
    fn calls_that_were_not_measured_are_kept() {
        assert!(rules(16, 1).is_empty() && rules(2, 1).is_empty() && !rules(8, 1).is_empty());
        let rules = rules(16, 2);
        let aggregated = Call { is_aggregated: true, ..call(64) };
        assert_eq!(selected(&rules, aggregated, costs()), Decision::Kept(Reason::Aggregated));
        let mut relegated = costs();
        relegated[0] = 1024.0 * 20.0;
        let found = selected(&rules, call(1024), relegated);
        assert_eq!(found, Decision::Kept(Reason::Relegated(tree(Protocol::Ll, 0))));
    }

    #[test]
    fn a_choice_is_the_lowest_afterwards() {
        let mut costs = costs();
        let mut table = CostTable { costs: &mut costs, protocols: PROTOCOLS };
        assert_eq!(table.lowest(), Some((1, 0)));
        table.choose(tree(Protocol::Ll128, 0));
        assert_eq!(table.lowest(), Some((0, 1)));
        let nvls = Choice { algorithm: Algorithm::Nvls, protocol: Protocol::Simple, channels: 0 };
        table.choose(nvls);
        assert_eq!(table.lowest(), Some((0, 1)), "not available");
        assert_eq!(CostTable { costs: &mut [], protocols: 0 }.lowest(), None);
    }

    fn any_cost() -> impl Strategy<Value = f32> {
        prop_oneof![Just(-1.0), Just(0.0), Just(f32::NAN), Just(f32::INFINITY), 0.001f32..1e6]
    }

    proptest! {
        #[test]
        fn only_the_chosen_entry_changes(
            mut costs in prop::collection::vec(any_cost(), 0..40),
            protocols in 0usize..6,
            function in prop::sample::select(&Function::ALL[..]),
            bytes: u64,
            is_aggregated: bool,
        ) {
            let before = costs.clone();
            let call = Call { function, bytes, is_aggregated };
            let mut table = CostTable { costs: &mut costs, protocols };
            for rules in [rules(16, 2), rules(8, 1)] {
                if let Decision::Chosen(choice) = select(&rules, call, &table) {
                    let index = table.index(choice.algorithm, choice.protocol).unwrap();
                    prop_assert!(before[index] >= 0.0);
                    table.choose(choice);
                    prop_assert_eq!(table.costs[index], 0.0);
                }
            }
            for (after, before) in costs.iter().zip(before) {
                prop_assert!(after.to_bits() == before.to_bits() || (*after == 0.0 && before >= 0.0));
            }
        }
    }
}
