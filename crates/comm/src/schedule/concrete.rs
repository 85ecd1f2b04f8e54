//! Programs run with real numbers, in an order drawn at random, for tests: what the symbolic proof
//! is held against.

use std::collections::{HashMap, VecDeque};

use super::{Blocks, Piece, Place, Program, Step, share};
use crate::dtype::bytes_of;
use crate::reference::outputs;
use crate::{Counts, DType, Kind, ReduceOp};

type Data = Vec<Option<Vec<i64>>>;

/// A plain generator of numbers.
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

struct Rank {
    input: Data,
    output: Data,
    scratch: Data,
    in_place: bool,
    round: usize,
    /// Steps of the round that are still to be done; `None` before it begins.
    left: Option<Vec<Step>>,
}

impl Rank {
    fn block(&mut self, place: Place, block: u32) -> Option<&mut Option<Vec<i64>>> {
        let data = match place {
            Place::Output => &mut self.output,
            Place::Input if self.in_place => &mut self.output,
            Place::Input => &mut self.input,
            Place::Scratch => &mut self.scratch,
        };
        data.get_mut(block as usize)
    }

    fn read(&mut self, piece: &Piece) -> Option<Vec<Vec<i64>>> {
        piece.blocks.clone().map(|b| self.block(piece.place, b)?.clone()).collect()
    }

    fn write(&mut self, piece: &Piece, values: Vec<Vec<i64>>, reduce: bool) -> Option<()> {
        for (block, value) in piece.blocks.clone().zip(values) {
            let held = self.block(piece.place, block)?;
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

/// Whether the programs do what the reference does, with blocks of `counts` elements (the first
/// for an all-to-all). `Err` says how not.
pub(super) fn agrees(
    kind: Kind,
    root: u32,
    programs: &[Program],
    counts: &[usize],
    in_place: bool,
    dice: &mut Dice,
) -> Result<(), String> {
    let ranks = programs.len();
    let (sizes, counts) = sizes(kind, programs, counts);
    let gives = |rank: usize, block: usize| match kind {
        Kind::Broadcast | Kind::Scatter => rank == root as usize,
        Kind::AllGather | Kind::Gather => rank == block,
        _ => true,
    };
    let given: Vec<Data> = (0..ranks)
        .map(|rank| {
            let mut block = |(block, size): (usize, &usize)| {
                let data = (0..*size).map(|_| dice.next() as i64).collect();
                gives(rank, block).then_some(data)
            };
            sizes.iter().enumerate().map(&mut block).collect()
        })
        .collect();
    let inputs: Vec<Vec<u8>> = given.iter().map(joined).collect();
    let right = outputs(kind, DType::I64, ReduceOp::Sum, root as usize, &counts, &inputs);
    let got = run(kind, programs, given, in_place, dice).ok_or("it cannot be run")?;
    for (rank, (mut output, right)) in got.into_iter().zip(right).enumerate() {
        let own = matches!(kind, Kind::ReduceScatter | Kind::Scatter);
        if own {
            output = vec![output[rank].take()];
        }
        let none = matches!(kind, Kind::Reduce | Kind::Gather) && rank != root as usize;
        if !none && kind != Kind::Barrier && joined(&output) != right {
            return Err(format!("rank {rank} gets something else"));
        }
    }
    Ok(())
}

fn joined(data: &Data) -> Vec<u8> {
    data.iter().flatten().flat_map(|block| bytes_of(block).to_vec()).collect()
}

/// The sizes of blocks, and the same as counts of a call.
fn sizes(kind: Kind, programs: &[Program], counts: &[usize]) -> (Vec<usize>, Counts<'static>) {
    let ranks = programs.len();
    let each: Vec<usize> = (0..ranks).map(|rank| counts[rank % counts.len()]).collect();
    match programs[0].blocks {
        Blocks::Shares(shares) => {
            let total = each.iter().sum();
            let sizes = (0..shares).map(|index| share(total, shares, index).len()).collect();
            (sizes, Counts::Equal(total))
        }
        Blocks::Parts if kind == Kind::AllToAll => (vec![each[0]; ranks], Counts::Equal(each[0])),
        Blocks::Parts => (each.clone(), Counts::Each(each.into())),
    }
}

/// The outputs; `None` if a program reads what is not there, or waits for ever.
fn run(
    kind: Kind,
    programs: &[Program],
    given: Vec<Data>,
    in_place: bool,
    dice: &mut Dice,
) -> Option<Vec<Data>> {
    let in_place = in_place || kind == Kind::Broadcast;
    let rank = |input: Data| {
        let empty = vec![None; input.len()];
        let output = if in_place { input.clone() } else { empty.clone() };
        Rank { input, output, scratch: empty, in_place, round: 0, left: None }
    };
    let mut ranks: Vec<Rank> = given.into_iter().map(rank).collect();
    let mut mail = HashMap::new();
    loop {
        let mut moved = false;
        let first = dice.below(ranks.len());
        for at in 0..ranks.len() {
            let at = (first + at) % ranks.len();
            moved |= advance(at as u32, &mut ranks[at], &programs[at], &mut mail)?;
        }
        if !moved {
            break;
        }
    }
    let over = ranks.iter().zip(programs).all(|(rank, program)| rank.round == program.rounds.len());
    let empty = mail.values().all(VecDeque::is_empty);
    (over && empty).then(|| ranks.into_iter().map(|rank| rank.output).collect())
}

type Mail = HashMap<(u32, u32), VecDeque<Vec<Vec<i64>>>>;

/// Does what can be done of a rank's round, and whether that was anything.
fn advance(me: u32, rank: &mut Rank, program: &Program, mail: &mut Mail) -> Option<bool> {
    let Some(round) = program.rounds.get(rank.round) else { return Some(false) };
    let mut moved = rank.left.is_none();
    let steps = rank.left.take().unwrap_or_else(|| round.clone());
    let mut left: Vec<Step> = Vec::new();
    // Messages between two ranks keep their order.
    let mut behind: Vec<u32> = Vec::new();
    for step in steps {
        match &step {
            Step::Send { to, what } => {
                let values = rank.read(what)?;
                mail.entry((me, *to)).or_default().push_back(values);
            }
            Step::Copy { from, to } => {
                let values = rank.read(from)?;
                rank.write(to, values, false)?;
            }
            Step::Receive { from, into, reduce } => {
                let come = mail.get_mut(&(*from, me)).filter(|_| !behind.contains(from));
                let Some(values) = come.and_then(VecDeque::pop_front) else {
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
