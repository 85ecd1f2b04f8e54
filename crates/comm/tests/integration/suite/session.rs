//! Sequences of collectives on a world and on nested splits of it, blocking or in the background.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use regatta_comm::Comm;
use regatta_comm::comm::split_order;
use regatta_testbed::Random;
use regatta_testbed::reference::hash64;

use super::case::{BufferSource, Case, StartedCase};
use super::on_all_ranks;
use super::random_case::any_case;

/// Colour and key of each rank of the world.
type SplitArgs = Vec<(Option<u32>, i64)>;

/// The calls of all ranks of a world.
#[derive(Debug, Clone)]
pub struct Session {
    pub ranks: u32,
    /// Splits: the parent (0 is the world, n is split n - 1) and each rank's arguments.
    pub splits: Vec<(usize, SplitArgs)>,
    pub steps: Vec<SessionStep>,
    /// Seed of the order in which a rank waits for background calls, if it does.
    pub seed: u64,
}

/// One collective.
#[derive(Debug, Clone)]
pub struct SessionStep {
    /// 0 for the world, n for split n - 1.
    pub group: usize,
    /// For any number of ranks.
    pub case: Case,
    /// Buffer source of a background call; `None` for a blocking call.
    pub started: Option<BufferSource>,
}

/// World ranks of a communicator, in its rank order.
type Members = Vec<u32>;

/// The communicators of every group, and the results of every step.
pub struct ExpectedResults {
    groups: Vec<Vec<Members>>,
    expected: Vec<BTreeMap<Members, Vec<Vec<u8>>>>,
}

impl Session {
    /// Computes the expected results.
    pub fn expected_results(&self) -> ExpectedResults {
        let mut groups: Vec<Vec<Members>> = vec![vec![(0..self.ranks).collect()]];
        for (of, args) in &self.splits {
            let mut parts = Vec::new();
            for members in &groups[*of] {
                let args: SplitArgs = members.iter().map(|rank| args[*rank as usize]).collect();
                let colours: BTreeSet<u32> =
                    args.iter().filter_map(|(colour, _)| *colour).collect();
                let world_rank = |rank: u32| members[rank as usize];
                let part = |c| split_order(&args, c).into_iter().map(world_rank).collect();
                parts.extend(colours.into_iter().map(part));
            }
            groups.push(parts);
        }
        let expected = |step: &SessionStep| {
            let each = groups[step.group].iter();
            let expected = |members: &Members| {
                let case = step.case.for_ranks(members.len());
                (members.clone(), case.expected(members.len()))
            };
            each.map(expected).collect()
        };
        let expected = self.steps.iter().map(expected).collect();
        ExpectedResults { groups, expected }
    }

    /// Runs this rank's calls.
    pub fn run(&self, world: &dyn Comm, results: &ExpectedResults, devices: bool) {
        let rank = world.rank();
        let mut parts: Vec<Option<Box<dyn Comm>>> = Vec::new();
        for (of, args) in &self.splits {
            let parent = if *of == 0 { Some(world) } else { parts[*of - 1].as_deref() };
            let (colour, key) = args[rank as usize];
            parts.push(parent.and_then(|parent| parent.split(colour, key).unwrap()));
        }
        let within = |group: usize| results.groups[group].iter().find(|m| m.contains(&rank));
        for (group, part) in parts.iter().enumerate() {
            let own = part.as_ref().map(|part| (part.rank() as usize, part.size() as usize));
            let at = |m: &Members| (m.iter().position(|r| *r == rank).unwrap(), m.len());
            assert_eq!(own, within(group + 1).map(at), "rank {rank} in split {group}");
        }
        let mut open: Vec<(StartedCase, &[u8])> = Vec::new();
        let mut rng = Random::new(hash64(self.seed ^ hash64(u64::from(rank))));
        // Device communicators share a ticket queue, so all ranks must use the same order.
        let order = if devices { self.in_order() } else { self.shuffled_order(&mut rng) };
        for (at, may_wait) in order {
            let step = &self.steps[at];
            let Some(members) = within(step.group) else { continue };
            let part = step.group.checked_sub(1).and_then(|group| parts[group].as_deref());
            let comm = part.unwrap_or(world);
            let case = step.case.for_ranks(members.len());
            let expected = &results.expected[at][members][comm.rank() as usize];
            match step.started {
                Some(memory) => {
                    let plain = memory == BufferSource::Device && !devices;
                    let memory = if plain { BufferSource::Communicator } else { memory };
                    open.push((case.start(comm, memory), expected));
                }
                None => case.run(comm, expected),
            }
            if may_wait && rng.below(2) == 0 {
                wait_for_one(&mut open, &mut rng);
            }
        }
        // Background calls complete even if their communicator is dropped.
        if rng.below(2) == 0 {
            parts.clear();
        }
        while !open.is_empty() {
            wait_for_one(&mut open, &mut rng);
        }
    }

    /// A rank's start order, and whether it may wait after each start. Adjacent background calls on
    /// different communicators may be swapped if the rank does not wait in between.
    fn shuffled_order(&self, rng: &mut Random) -> Vec<(usize, bool)> {
        let mut order = self.in_order();
        let mut at = 0;
        while at + 1 < order.len() {
            let (one, two) = (&self.steps[at], &self.steps[at + 1]);
            let started = one.started.is_some() && two.started.is_some();
            if started && one.group != two.group && rng.below(2) == 0 {
                order.swap(at, at + 1);
                order[at].1 = false;
                at += 1;
            }
            at += 1;
        }
        order
    }

    fn in_order(&self) -> Vec<(usize, bool)> {
        (0..self.steps.len()).map(|at| (at, true)).collect()
    }

    /// Runs the session on all ranks of a world.
    pub fn check<C: Comm>(&self, world: Vec<C>) {
        let results = self.expected_results();
        on_all_ranks(world, |comm| self.run(comm, &results, false));
    }
}

/// Waits for a random pending call, or drops it.
fn wait_for_one(open: &mut Vec<(StartedCase, &[u8])>, rng: &mut Random) {
    if open.is_empty() {
        return;
    }
    let (started, expected) = open.remove(rng.below(open.len() as u64) as usize);
    if rng.below(5) > 0 {
        started.finish(expected);
    }
}

pub fn session(ranks: impl Strategy<Value = u32>) -> impl Strategy<Value = Session> {
    let args = (prop::option::weighted(0.9, 0u32..3), -2i64..3);
    let split = (any::<prop::sample::Index>(), prop::collection::vec(args, 17));
    let memory = [BufferSource::Heap, BufferSource::Communicator, BufferSource::Device];
    let memory = prop::option::of(prop::sample::select(memory.to_vec()));
    let step = (any::<prop::sample::Index>(), any_case(), memory);
    let (splits, steps) = (prop::collection::vec(split, 0..3), prop::collection::vec(step, 1..24));
    (ranks, splits, steps, any::<u64>()).prop_map(|(ranks, splits, steps, seed)| {
        let groups = splits.len() + 1;
        let splits = splits.into_iter().enumerate();
        let splits = splits.map(|(at, (of, args))| (of.index(at + 1), args)).collect();
        let step = |(group, case, started): (prop::sample::Index, Case, _)| SessionStep {
            group: group.index(groups),
            case,
            started,
        };
        let steps = steps.into_iter().map(step).collect();
        Session { ranks, splits, steps, seed }
    })
}
