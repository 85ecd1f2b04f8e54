//! A communicator between threads of one process that computes every collective with the reference
//! implementation. For tests of code that uses a communicator.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use regatta_comm::comm::split_order;
use regatta_comm::engine::{AbortFn, BoxEngine, Engine, HasFailedFn, all_gather_split_args};
use regatta_comm::error::Peer;
use regatta_comm::{Call, CallKind, CommError, Communicator, Counts, Result, Signature};

use crate::reference::{all_to_all_v, expected_outputs};

/// The state shared by all ranks.
struct World {
    state: Mutex<WorldState>,
    changed: Condvar,
    size: usize,
}

#[derive(Default)]
struct WorldState {
    /// The contributions of the current collective, until it is complete.
    calls: HashMap<usize, Contribution>,
    /// Its results, until all ranks have taken theirs.
    results: HashMap<usize, Result<Vec<u8>>>,
    /// Messages in flight, by sender, receiver and tag.
    messages: HashMap<(u32, u32, u32), Vec<Vec<u8>>>,
    /// The rank that aborted, and why.
    aborted: Option<(u32, String)>,
    /// Ranks that dropped their communicator.
    departed: HashSet<u32>,
    sequence: u64,
    /// The sub-communicators of a split, by its sequence word and colour.
    children: HashMap<(u64, u32), Arc<World>>,
}

/// The arguments of one rank.
struct Contribution {
    signature: Signature,
    input: Vec<u8>,
    counts: Counts<'static>,
}

/// The engine of one rank.
struct InProcessEngine {
    rank: u32,
    world: Arc<World>,
}

/// The communicators of `size` ranks, one for each thread.
pub fn world(size: u32) -> Vec<Communicator> {
    engines(size).into_iter().map(Communicator::new).collect()
}

/// The engines of `size` ranks.
pub fn engines(size: u32) -> Vec<BoxEngine> {
    let world = Arc::new(World::new(size as usize));
    let rank = |rank| Box::new(InProcessEngine { rank, world: world.clone() }) as BoxEngine;
    (0..size).map(rank).collect()
}

impl World {
    fn new(size: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), size }
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer(rank: u32) -> Peer {
        Peer::new(rank, "localhost")
    }

    /// Waits for a condition. Fails if an awaited rank has departed.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, WorldState>,
        awaited: impl Fn(u32) -> bool,
        condition: impl Fn(&WorldState) -> bool,
    ) -> Result<MutexGuard<'a, WorldState>> {
        while !condition(&state) {
            if let Some((rank, why)) = &state.aborted {
                return Err(CommError::Aborted { by: Self::peer(*rank), why: why.clone() });
            }
            if let Some(&rank) = state.departed.iter().find(|rank| awaited(**rank)) {
                let why = "it exited".to_owned();
                return Err(CommError::Aborted { by: Self::peer(rank), why });
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state)
    }

    fn abort(&self, rank: u32, why: &str) {
        self.lock().aborted.get_or_insert((rank, why.to_owned()));
        self.changed.notify_all();
    }
}

impl WorldState {
    /// Computes the results once all ranks have called.
    fn complete_collective(&mut self, call: &Call, ranks: usize) {
        let calls: Vec<_> = (0..ranks).filter_map(|r| self.calls.remove(&r)).collect();
        self.sequence += 1;
        self.results = match outputs(call, self.sequence, calls) {
            Ok(outputs) => outputs.into_iter().map(Ok).enumerate().collect(),
            Err(error) => (0..ranks).map(|rank| (rank, Err(error.clone()))).collect(),
        };
    }
}

/// The outputs of all ranks.
fn outputs(call: &Call, sequence: u64, calls: Vec<Contribution>) -> Result<Vec<Vec<u8>>> {
    let signature = calls[0].signature;
    if let Some(mismatch) = calls.iter().position(|c| c.signature != signature) {
        return Err(CommError::CallMismatch {
            sequence,
            ours_by: World::peer(0),
            ours: Box::new(signature),
            theirs_by: World::peer(mismatch as u32),
            theirs: Box::new(calls[mismatch].signature),
        });
    }
    let (inputs, counts): (Vec<_>, Vec<_>) = calls.into_iter().map(|c| (c.input, c.counts)).unzip();
    if !matches!(counts[0], Counts::PerPair { .. }) {
        let Call { kind, dtype, op, root, .. } = *call;
        return Ok(expected_outputs(kind, dtype, op, root as usize, &counts[0], &inputs));
    }
    let all = 0..counts.len();
    for (from, to) in all.clone().flat_map(|from| all.clone().map(move |to| (from, to))) {
        let (sent, expected) = (counts[from].send_block(to).1 as u64, counts[to].of(from) as u64);
        if sent != expected {
            let (from, to) = (World::peer(from as u32), World::peer(to as u32));
            return Err(CommError::CountMismatch { from, to, dtype: call.dtype, sent, expected });
        }
    }
    let sent = |counts: &Counts| all.clone().map(|to| counts.send_block(to).1).collect();
    let sent: Vec<Vec<usize>> = counts.iter().map(sent).collect();
    Ok(all_to_all_v(call.dtype, &sent, &inputs))
}

impl InProcessEngine {
    fn run_message(&self, call: Call<'_>) -> Result {
        let mut state = self.world.lock();
        if call.kind == CallKind::Send {
            let message = call.contribution(self.rank as usize).to_vec();
            state.messages.entry((self.rank, call.root, call.tag)).or_default().push(message);
            self.world.changed.notify_all();
            return Ok(());
        }
        let key = (call.root, self.rank, call.tag);
        let arrived = |s: &WorldState| s.messages.get(&key).is_some_and(|m| !m.is_empty());
        let mut state = self.world.wait(state, |rank| rank == call.root, arrived)?;
        let bytes = state.messages.get_mut(&key).map(|m| m.remove(0)).unwrap_or_default();
        if bytes.len() != call.output.len() {
            let what = format!("received {} bytes, expected {}", bytes.len(), call.output.len());
            return Err(CommError::InvalidCall { call: call.kind.name(), what });
        }
        call.output.copy_from_slice(&bytes);
        Ok(())
    }
}

impl Engine for InProcessEngine {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn peers(&self) -> Vec<Peer> {
        (0..self.world.size as u32).map(World::peer).collect()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        if matches!(call.kind, CallKind::Send | CallKind::Receive) {
            return self.run_message(call);
        }
        let (rank, size) = (self.rank as usize, self.world.size);
        // All ranks must have taken the results of the previous collective.
        let any_rank = |_| true;
        let empty = |s: &WorldState| s.results.is_empty();
        let mut state = self.world.wait(self.world.lock(), any_rank, empty)?;
        let contribution = Contribution {
            signature: call.signature(size),
            input: call.contribution(rank).to_vec(),
            counts: call.counts.clone().into_owned(),
        };
        state.calls.insert(rank, contribution);
        if state.calls.len() == size {
            state.complete_collective(&call, size);
            self.world.changed.notify_all();
        }
        let mut state = self.world.wait(state, any_rank, |s| s.results.contains_key(&rank))?;
        let result = state.results.remove(&rank).unwrap_or_else(|| Ok(Vec::new()))?;
        self.world.changed.notify_all();
        drop(state);
        let range = call.result_range(rank);
        call.output[range].copy_from_slice(&result);
        Ok(())
    }

    fn run_p2p(&mut self, mut messages: Vec<Call<'_>>) -> Result {
        // Sends do not block.
        messages.sort_by_key(|call| call.kind != CallKind::Send);
        messages.into_iter().try_for_each(|call| self.run(call))
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        let args = all_gather_split_args(self, colour, key)?;
        let Some(colour) = colour else { return Ok(None) };
        let ranks = split_order(&args, colour);
        let mut state = self.world.lock();
        // No rank can complete another collective before this one calls it.
        let now = state.sequence;
        state.children.retain(|(call, _), _| *call == now);
        let fresh = || Arc::new(World::new(ranks.len()));
        let world = state.children.entry((now, colour)).or_insert_with(fresh).clone();
        let rank = ranks.iter().position(|&r| r == self.rank).unwrap_or(0) as u32;
        Ok(Some(Box::new(InProcessEngine { rank, world })))
    }

    fn abort_fn(&self) -> AbortFn {
        let (world, rank) = (self.world.clone(), self.rank);
        Arc::new(move |why| world.abort(rank, why))
    }

    fn has_failed_fn(&self) -> HasFailedFn {
        let world = self.world.clone();
        Arc::new(move || world.lock().aborted.is_some())
    }
}

/// Other ranks must not wait for a departed one.
impl Drop for InProcessEngine {
    fn drop(&mut self) {
        self.world.lock().departed.insert(self.rank);
        self.world.changed.notify_all();
    }
}
