//! Many collectives on one world: on all of it and on parts of parts, done at once or begun and
//! waited for later, or never.

use std::collections::BTreeMap;

use proptest::prelude::*;
use regatta_comm::Comm;
use regatta_comm::comm::order;

use super::case::{Memory, Started, mix};
use super::on_all;
use super::recipe::{Recipe, recipe};

/// A colour and a key for each rank of the world.
type Said = Vec<(Option<u32>, i64)>;

/// What all ranks of a world do.
#[derive(Debug, Clone)]
pub struct Session {
    pub ranks: u32,
    /// Splits of what an earlier one has left, or of the world: which, and what each rank says.
    pub splits: Vec<(usize, Said)>,
    pub steps: Vec<Step>,
    /// When a rank waits for what, and whether it does.
    pub seed: u64,
}

/// One collective.
#[derive(Debug, Clone)]
pub struct Step {
    /// The world, or what the split before that number has left.
    pub group: usize,
    pub recipe: Recipe,
    /// Where its buffers are, if it is begun and not done at once.
    pub started: Option<Memory>,
}

/// The ranks of the world that are in one communicator after a split, in their order there.
type Members = Vec<u32>;

/// For every group, who is with whom, and for every step, what each of them must get.
pub struct Plan {
    groups: Vec<Vec<Members>>,
    right: Vec<BTreeMap<Members, Vec<Vec<u8>>>>,
}

impl Session {
    /// Works out what must come of it.
    pub fn plan(&self) -> Plan {
        let mut groups: Vec<Vec<Members>> = vec![vec![(0..self.ranks).collect()]];
        for (of, said) in &self.splits {
            let mut parts = Vec::new();
            for members in &groups[*of] {
                let says: Said = members.iter().map(|rank| said[*rank as usize]).collect();
                let mut colours: Vec<u32> = says.iter().filter_map(|(colour, _)| *colour).collect();
                colours.sort_unstable();
                colours.dedup();
                let of_old = |rank: u32| members[rank as usize];
                parts.extend(
                    colours.into_iter().map(|c| order(&says, c).into_iter().map(of_old).collect()),
                );
            }
            groups.push(parts);
        }
        let right = |step: &Step| {
            let each = groups[step.group].iter();
            let right = |members: &Members| {
                let case = step.recipe.case(members.len());
                (members.clone(), case.right(members.len()))
            };
            each.map(right).collect()
        };
        let right = self.steps.iter().map(right).collect();
        Plan { groups, right }
    }

    /// One rank's part in it.
    pub fn play(&self, world: &dyn Comm, plan: &Plan, devices: bool) {
        let rank = world.rank();
        let mut parts: Vec<Option<Box<dyn Comm>>> = Vec::new();
        for (of, said) in &self.splits {
            let parent = if *of == 0 { Some(world) } else { parts[*of - 1].as_deref() };
            let (colour, key) = said[rank as usize];
            parts.push(parent.and_then(|parent| parent.split(colour, key).unwrap()));
        }
        let within = |group: usize| plan.groups[group].iter().find(|m| m.contains(&rank));
        for (group, part) in parts.iter().enumerate() {
            let place = part.as_ref().map(|part| (part.rank() as usize, part.size() as usize));
            let at = |m: &Members| (m.iter().position(|r| *r == rank).unwrap(), m.len());
            assert_eq!(place, within(group + 1).map(at), "rank {rank} in split {group}");
        }
        let mut open: Vec<(usize, Started)> = Vec::new();
        let mut chance = Chance(mix(self.seed ^ mix(u64::from(rank))));
        // Communicators of a device stand in one line: there, all ranks have one order.
        let order = if devices { self.in_order() } else { self.order(&mut chance) };
        for (at, may_wait) in order {
            let step = &self.steps[at];
            let Some(members) = within(step.group) else { continue };
            let part = step.group.checked_sub(1).and_then(|group| parts[group].as_deref());
            let comm = part.unwrap_or(world);
            let case = step.recipe.case(members.len());
            match step.started {
                Some(memory) => {
                    let plain = memory == Memory::Device && !devices;
                    let memory = if plain { Memory::Communicator } else { memory };
                    open.push((at, case.start(comm, memory)));
                }
                None => case.run(comm, &plan.right[at][members][comm.rank() as usize]),
            }
            if may_wait && chance.below(2) == 0 {
                self.wait_for_one(&mut open, &mut chance, rank, plan);
            }
        }
        // What is begun is done even if nobody has the communicator any more.
        if chance.below(2) == 0 {
            parts.clear();
        }
        while !open.is_empty() {
            self.wait_for_one(&mut open, &mut chance, rank, plan);
        }
    }

    /// The order in which a rank begins them, and whether it may wait for one after that. Two of
    /// different communicators may be begun the other way round, if none is waited for in between.
    fn order(&self, chance: &mut Chance) -> Vec<(usize, bool)> {
        let mut order = self.in_order();
        let mut at = 0;
        while at + 1 < order.len() {
            let (one, two) = (&self.steps[at], &self.steps[at + 1]);
            let started = one.started.is_some() && two.started.is_some();
            if started && one.group != two.group && chance.below(2) == 0 {
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

    /// Waits for any that is open, or forgets it.
    fn wait_for_one(
        &self,
        open: &mut Vec<(usize, Started)>,
        chance: &mut Chance,
        rank: u32,
        plan: &Plan,
    ) {
        if open.is_empty() {
            return;
        }
        let (at, started) = open.remove(chance.below(open.len()));
        if chance.below(5) == 0 {
            return;
        }
        let group = &plan.groups[self.steps[at].group];
        let members = group.iter().find(|m| m.contains(&rank)).unwrap();
        let place = members.iter().position(|r| *r == rank).unwrap();
        started.finish(&plan.right[at][members][place]);
    }

    /// Plays it in a world.
    pub fn check<C: Comm>(&self, world: Vec<C>) {
        let plan = self.plan();
        on_all(world, |comm| self.play(comm, &plan, false));
    }
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = mix(self.0.wrapping_add(0x5eed));
        (self.0 >> 16) as usize % limit
    }
}

/// Any session of so many ranks.
pub fn session(ranks: impl Strategy<Value = u32>) -> impl Strategy<Value = Session> {
    let said = (prop::option::weighted(0.9, 0u32..3), -2i64..3);
    let split = (any::<prop::sample::Index>(), prop::collection::vec(said, 17));
    let memory = prop::sample::select(vec![Memory::Heap, Memory::Communicator, Memory::Device]);
    let step = (any::<prop::sample::Index>(), recipe(), prop::option::of(memory));
    let parts = (
        ranks,
        prop::collection::vec(split, 0..3),
        prop::collection::vec(step, 1..24),
        any::<u64>(),
    );
    parts.prop_map(|(ranks, splits, steps, seed)| {
        let groups = splits.len() + 1;
        let splits = splits.into_iter().enumerate();
        let splits = splits.map(|(at, (of, said))| (of.index(at + 1), said)).collect();
        let step = |(group, recipe, started): (prop::sample::Index, Recipe, _)| Step {
            group: group.index(groups),
            recipe,
            started,
        };
        let steps = steps.into_iter().map(step).collect();
        Session { ranks, splits, steps, seed }
    })
}
