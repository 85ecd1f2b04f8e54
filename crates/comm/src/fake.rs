//! Ranks that are threads of one process, with the plain way to do everything: for tests of what
//! uses a communicator.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::background::{Abort, Background, Engine, Over, apart};
use crate::comm::order;
use crate::error::Peer;
use crate::reference::{exchanged, outputs};
use crate::{Call, CommError, Counts, DType, Kind, Signature};

/// Where the ranks of a fake world meet.
struct World {
    state: Mutex<State>,
    changed: Condvar,
    size: usize,
}

#[derive(Default)]
struct State {
    /// What ranks called, until all have.
    calls: HashMap<usize, Given>,
    /// What they get, until all have it.
    results: HashMap<usize, Result<Vec<u8>, CommError>>,
    /// Messages on their way, by sender, receiver and tag.
    mail: HashMap<(u32, u32, u32), Vec<Vec<u8>>>,
    /// Who gave up, or left while others may wait for all, and why.
    over: Option<(u32, String)>,
    /// Who left.
    left: HashSet<u32>,
    sequence: u64,
    /// The worlds of a split, by the call that it was and the colour.
    children: HashMap<(u64, u32), Arc<World>>,
}

/// What a rank gave.
struct Given {
    signature: Signature,
    input: Vec<u8>,
    counts: Counts<'static>,
}

/// One rank of a fake world.
struct Fake {
    rank: u32,
    world: Arc<World>,
}

/// A world of `size` ranks, for as many threads.
pub fn world(size: u32) -> Vec<Background> {
    let world = Arc::new(World::new(size as usize));
    let rank = |rank| Background::new(Box::new(Fake { rank, world: world.clone() }));
    (0..size).map(rank).collect()
}

impl World {
    fn new(size: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), size }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(rank: u32) -> Peer {
        Peer { rank, host: "here".to_owned() }
    }

    /// Waits until something holds, or somebody who is waited for is gone.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        awaited: impl Fn(u32) -> bool,
        holds: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, CommError> {
        while !holds(&state) {
            if let Some((rank, why)) = &state.over {
                return Err(CommError::Aborted { by: Self::peer(*rank), why: why.clone() });
            }
            if let Some(&rank) = state.left.iter().find(|rank| awaited(**rank)) {
                let why = "it ended".to_owned();
                return Err(CommError::Aborted { by: Self::peer(rank), why });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    fn give_up(&self, rank: u32, why: &str) {
        self.lock().over.get_or_insert((rank, why.to_owned()));
        self.changed.notify_all();
    }

    fn leave(&self, rank: u32) {
        self.lock().left.insert(rank);
        self.changed.notify_all();
    }
}

impl State {
    /// All have called: works out what each gets.
    fn conclude(&mut self, call: &Call<'_>, ranks: usize) {
        let mut calls: Vec<Given> = (0..ranks).filter_map(|r| self.calls.remove(&r)).collect();
        self.sequence += 1;
        let odd = calls.iter().position(|c| c.signature != calls[0].signature);
        if let Some(odd) = odd {
            let error = CommError::Disagree {
                sequence: self.sequence,
                ours_by: World::peer(0),
                ours: Box::new(calls[0].signature),
                theirs_by: World::peer(odd as u32),
                theirs: Box::new(calls[odd].signature),
            };
            self.results = (0..ranks).map(|r| (r, Err(error.clone()))).collect();
            return;
        }
        let inputs: Vec<Vec<u8>> = calls.iter_mut().map(|c| std::mem::take(&mut c.input)).collect();
        let pairs = |c: &Given| match &c.counts {
            Counts::Exchange { send, receive } => Some((send.to_vec(), receive.to_vec())),
            _ => None,
        };
        let pairs: Option<Vec<(Vec<usize>, Vec<usize>)>> = calls.iter().map(pairs).collect();
        let all = match pairs {
            Some(pairs) => {
                if let Some(error) = unmatched(call.dtype, &pairs) {
                    self.results = (0..ranks).map(|r| (r, Err(error.clone()))).collect();
                    return;
                }
                let send: Vec<Vec<usize>> = pairs.into_iter().map(|(send, _)| send).collect();
                exchanged(call.dtype, &send, &inputs)
            }
            None => {
                let root = call.root as usize;
                outputs(call.kind, call.dtype, call.op, root, &calls[0].counts, &inputs)
            }
        };
        self.results = all.into_iter().map(Ok).enumerate().collect();
    }
}

/// A rank that sends another something else than that expects, by what each sends and expects.
fn unmatched(dtype: DType, pairs: &[(Vec<usize>, Vec<usize>)]) -> Option<CommError> {
    let all = 0..pairs.len();
    let mut each = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
    let (from, to) = each.find(|&(from, to)| pairs[from].0[to] != pairs[to].1[from])?;
    Some(CommError::Unmatched {
        from: World::peer(from as u32),
        to: World::peer(to as u32),
        dtype,
        sent: pairs[from].0[to] as u64,
        expected: pairs[to].1[from] as u64,
    })
}

impl Fake {
    /// What this rank gives, wherever it lies.
    fn input(&self, call: &Call<'_>) -> Vec<u8> {
        let own = call.counts.offset(self.rank as usize) * call.dtype.size();
        let part = call.counts.of(self.rank as usize) * call.dtype.size();
        match (call.input, call.kind) {
            (Some(input), _) => input.to_vec(),
            (None, Kind::AllGather) => call.output[own..own + part].to_vec(),
            (None, Kind::Gather) if call.root == self.rank => call.output[own..own + part].to_vec(),
            (None, Kind::Scatter) if call.root != self.rank => Vec::new(),
            (None, _) => call.output.to_vec(),
        }
    }

    /// Puts what this rank gets where it belongs.
    fn put(&self, call: &mut Call<'_>, result: &[u8]) {
        let own = call.counts.offset(self.rank as usize) * call.dtype.size();
        let parts = matches!(call.kind, Kind::ReduceScatter | Kind::Scatter);
        match call.input {
            None if parts && call.output.len() > result.len() => {
                call.output[own..own + result.len()].copy_from_slice(result);
            }
            _ if result.is_empty() => {}
            _ => call.output.copy_from_slice(result),
        }
    }

    fn message(&self, call: Call<'_>) -> Result<(), CommError> {
        let mut state = self.world.lock();
        if call.kind == Kind::Send {
            let key = (self.rank, call.root, call.tag);
            state.mail.entry(key).or_default().push(self.input(&call));
            self.world.changed.notify_all();
            return Ok(());
        }
        let key = (call.root, self.rank, call.tag);
        let there = |s: &State| s.mail.get(&key).is_some_and(|mail| !mail.is_empty());
        let mut state = self.world.wait(state, |rank| rank == call.root, there)?;
        let bytes = state.mail.get_mut(&key).map(|mail| mail.remove(0)).unwrap_or_default();
        if bytes.len() != call.output.len() {
            let what = format!("{} bytes came, {} fit", bytes.len(), call.output.len());
            return Err(CommError::Shape { call: call.kind.name(), what });
        }
        call.output.copy_from_slice(&bytes);
        Ok(())
    }
}

impl Engine for Fake {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn peers(&self) -> Vec<Peer> {
        (0..self.world.size as u32).map(World::peer).collect()
    }

    fn run(&mut self, mut call: Call<'_>) -> Result<(), CommError> {
        if matches!(call.kind, Kind::Send | Kind::Receive) {
            return self.message(call);
        }
        let (rank, size) = (self.rank as usize, self.world.size);
        // The ones before must have what they got.
        let anybody = |_| true;
        let empty = |s: &State| s.results.is_empty();
        let mut state = self.world.wait(self.world.lock(), anybody, empty)?;
        let given = Given {
            signature: call.signature(size),
            input: self.input(&call),
            counts: call.counts.clone().into_owned(),
        };
        state.calls.insert(rank, given);
        if state.calls.len() == size {
            state.conclude(&call, size);
            self.world.changed.notify_all();
        }
        let mut state = self.world.wait(state, anybody, |s| s.results.contains_key(&rank))?;
        let result = state.results.remove(&rank).unwrap_or_else(|| Ok(Vec::new()))?;
        self.world.changed.notify_all();
        drop(state);
        self.put(&mut call, &result);
        Ok(())
    }

    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        let (messages, collectives) = apart(calls);
        // A send does not wait.
        let (sends, receives): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|call| call.kind == Kind::Send);
        let mut all = sends.into_iter().chain(receives).chain(collectives);
        all.try_for_each(|call| self.run(call))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        let size = self.world.size;
        let mut all = vec![0u8; size * 16];
        let at = self.rank as usize * 16;
        let code = colour.map_or(-1, i64::from);
        all[at..at + 8].copy_from_slice(&code.to_le_bytes());
        all[at + 8..at + 16].copy_from_slice(&key.to_le_bytes());
        self.run(Call {
            kind: Kind::AllGather,
            dtype: DType::U8,
            op: crate::ReduceOp::Sum,
            root: 0,
            tag: 0,
            counts: Counts::Equal(16),
            input: None,
            output: &mut all,
        })?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&all[at..at + 8]);
            i64::from_le_bytes(bytes)
        };
        let of = |rank| (u32::try_from(number(rank * 16)).ok(), number(rank * 16 + 8));
        let colours: Vec<_> = (0..size).map(of).collect();
        let Some(colour) = colour else { return Ok(None) };
        let ranks = order(&colours, colour);
        let mut state = self.world.lock();
        // Nobody can have called anything more before this rank does.
        let now = state.sequence;
        state.children.retain(|(call, _), _| *call == now);
        let fresh = || Arc::new(World::new(ranks.len()));
        let world = state.children.entry((now, colour)).or_insert_with(fresh).clone();
        let rank = ranks.iter().position(|&r| r == self.rank).unwrap_or(0) as u32;
        Ok(Some(Box::new(Fake { rank, world })))
    }

    fn abort(&self) -> Abort {
        let (world, rank) = (self.world.clone(), self.rank);
        Arc::new(move |why| world.give_up(rank, why))
    }

    fn over(&self) -> Over {
        let world = self.world.clone();
        Arc::new(move || world.lock().over.is_some())
    }
}

/// A rank that is no more must not be waited for.
impl Drop for Fake {
    fn drop(&mut self) {
        self.world.leave(self.rank);
    }
}
