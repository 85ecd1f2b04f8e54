//! Runs programs on real data in random order, as a test oracle for the symbolic checker.

use std::collections::{HashMap, VecDeque};

use super::BufferKind::{self, Input, Output, Scratch};
use super::{BlockRange, Blocks, Program, ProgramStep, equal_block};
use crate::dtype::bytes_of;
use crate::reference::expected_outputs;
use crate::{CallKind, Counts, DType, ReduceOp};

type Data = Vec<Option<Vec<i64>>>;

/// A simple random number generator.
pub(super) struct TestRng(pub u64);

impl TestRng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

struct RankState {
    input: Data,
    output: Data,
    scratch: Data,
    in_place: bool,
    round: usize,
    /// Remaining steps of the round; `None` before it starts.
    left: Option<Vec<ProgramStep>>,
}

impl RankState {
    fn block(&mut self, buffer: BufferKind, block: u32) -> Option<&mut Option<Vec<i64>>> {
        let data = match buffer {
            Output => &mut self.output,
            Input if self.in_place => &mut self.output,
            Input => &mut self.input,
            Scratch => &mut self.scratch,
        };
        data.get_mut(block as usize)
    }

    fn read(&mut self, range: &BlockRange) -> Option<Vec<Vec<i64>>> {
        range.blocks.clone().map(|b| self.block(range.buffer, b)?.clone()).collect()
    }

    fn write(&mut self, range: &BlockRange, values: Vec<Vec<i64>>, reduce: bool) -> Option<()> {
        for (block, value) in range.blocks.clone().zip(values) {
            let held = self.block(range.buffer, block)?;
            match held {
                Some(held) if reduce && held.len() == value.len() => {
                    held.iter_mut().zip(value).for_each(|(a, b)| *a = a.wrapping_add(b));
                }
                _ if reduce => return None,
                _ => *held = Some(value),
            }
        }
        Some(())
    }
}

/// Compares the programs with the reference, with blocks of `counts` elements (only the first for
/// an all-to-all).
pub(super) fn matches_reference(
    kind: CallKind,
    root: u32,
    programs: &[Program],
    counts: &[usize],
    in_place: bool,
    rng: &mut TestRng,
) -> Result<(), String> {
    let ranks = programs.len();
    let (sizes, counts) = sizes(kind, programs, counts);
    let contributes = |rank: usize, block: usize| match kind {
        CallKind::Broadcast | CallKind::Scatter => rank == root as usize,
        CallKind::AllGather | CallKind::Gather => rank == block,
        _ => true,
    };
    let contribution = |rank| {
        let block = |(block, size): (usize, &usize)| {
            let data = (0..*size).map(|_| rng.next() as i64).collect();
            contributes(rank, block).then_some(data)
        };
        sizes.iter().enumerate().map(block).collect()
    };
    let contributions: Vec<Data> = (0..ranks).map(contribution).collect();
    let inputs: Vec<Vec<u8>> = contributions.iter().map(joined).collect();
    let expected =
        expected_outputs(kind, DType::I64, ReduceOp::Sum, root as usize, &counts, &inputs);
    let got =
        run(kind, programs, contributions, in_place, rng).ok_or("the programs cannot be run")?;
    for (rank, (mut output, expected)) in got.into_iter().zip(expected).enumerate() {
        let own = matches!(kind, CallKind::ReduceScatter | CallKind::Scatter);
        if own {
            output = vec![output[rank].take()];
        }
        let none = matches!(kind, CallKind::Reduce | CallKind::Gather) && rank != root as usize;
        if !none && kind != CallKind::Barrier && joined(&output) != expected {
            return Err(format!("rank {rank} gets a wrong result"));
        }
    }
    Ok(())
}

fn joined(data: &Data) -> Vec<u8> {
    data.iter().flatten().flat_map(|block| bytes_of(block).to_vec()).collect()
}

/// Block sizes, and the corresponding counts of a call.
fn sizes(kind: CallKind, programs: &[Program], counts: &[usize]) -> (Vec<usize>, Counts<'static>) {
    let ranks = programs.len();
    let each: Vec<usize> = (0..ranks).map(|rank| counts[rank % counts.len()]).collect();
    match programs[0].blocks {
        Blocks::Equal(shares) => {
            let total = each.iter().sum();
            let sizes = (0..shares).map(|index| equal_block(total, shares, index).len()).collect();
            (sizes, Counts::Equal(total))
        }
        Blocks::PerRank if kind == CallKind::AllToAll => {
            (vec![each[0]; ranks], Counts::Equal(each[0]))
        }
        Blocks::PerRank => (each.clone(), Counts::PerRank(each.into())),
    }
}

/// The outputs; `None` on an invalid read or a deadlock.
fn run(
    kind: CallKind,
    programs: &[Program],
    contributions: Vec<Data>,
    in_place: bool,
    rng: &mut TestRng,
) -> Option<Vec<Data>> {
    let in_place = in_place || kind == CallKind::Broadcast;
    let rank = |input: Data| {
        let empty = vec![None; input.len()];
        let output = if in_place { input.clone() } else { empty.clone() };
        RankState { input, output, scratch: empty, in_place, round: 0, left: None }
    };
    let mut ranks: Vec<RankState> = contributions.into_iter().map(rank).collect();
    let mut in_flight = HashMap::new();
    loop {
        let mut moved = false;
        let first = rng.below(ranks.len());
        for at in 0..ranks.len() {
            let at = (first + at) % ranks.len();
            moved |= advance(at as u32, &mut ranks[at], &programs[at], &mut in_flight)?;
        }
        if !moved {
            break;
        }
    }
    let finished = ranks.iter().zip(programs).all(|(r, p)| r.round == p.rounds.len());
    let empty = in_flight.values().all(VecDeque::is_empty);
    (finished && empty).then(|| ranks.into_iter().map(|rank| rank.output).collect())
}

type MessagesInFlight = HashMap<(u32, u32), VecDeque<Vec<Vec<i64>>>>;

/// Runs the ready steps of a rank's round; whether there were any.
fn advance(
    me: u32,
    rank: &mut RankState,
    program: &Program,
    in_flight: &mut MessagesInFlight,
) -> Option<bool> {
    let Some(round) = program.rounds.get(rank.round) else { return Some(false) };
    let mut moved = rank.left.is_none();
    let steps = rank.left.take().unwrap_or_else(|| round.clone());
    let mut left: Vec<ProgramStep> = Vec::new();
    // Messages between two ranks keep their order.
    let mut behind: Vec<u32> = Vec::new();
    for step in steps {
        match &step {
            ProgramStep::Send { to, what } => {
                let values = rank.read(what)?;
                in_flight.entry((me, *to)).or_default().push_back(values);
            }
            ProgramStep::Copy { from, to } => {
                let values = rank.read(from)?;
                rank.write(to, values, false)?;
            }
            ProgramStep::Receive { from, into, reduce } => {
                let arrived = in_flight.get_mut(&(*from, me)).filter(|_| !behind.contains(from));
                let Some(values) = arrived.and_then(VecDeque::pop_front) else {
                    behind.push(*from);
                    left.push(step);
                    continue;
                };
                if values.len() != into.blocks.len() {
                    return None;
                }
                rank.write(into, values, *reduce)?;
            }
        }
        moved = true;
    }
    if left.is_empty() {
        rank.round += 1;
    } else {
        rank.left = Some(left);
    }
    Some(moved)
}
