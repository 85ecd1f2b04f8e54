//! What a schedule costs: when each rank does what, and how long it waits.

use std::collections::HashMap;

use super::check::{Fault, order};
use super::{Action, Message, Schedule, Way, Work};

/// How long things take, in any unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// A micro-batch's forward pass, of each chunk of the model.
    pub forward: Vec<f64>,
    /// The gradient of its input.
    pub input: Vec<f64>,
    /// The gradients of its weights.
    pub weight: Vec<f64>,
    /// A message, from its send to its arrival; a link has one at a time.
    pub message: f64,
}

impl Costs {
    /// A forward pass, the gradient of the input and those of the weights take equally long, as
    /// matrix products do: a third of the chunk's cost each. Messages take no time.
    pub fn thirds(chunks: &[f64]) -> Self {
        let third: Vec<f64> = chunks.iter().map(|cost| cost / 3.0).collect();
        Self { forward: third.clone(), input: third.clone(), weight: third, message: 0.0 }
    }

    fn of(&self, action: Action) -> f64 {
        let Action { work, chunk, .. } = action;
        match work {
            Work::Forward => self.forward[chunk],
            Work::Backward => self.input[chunk] + self.weight[chunk],
            Work::Input => self.input[chunk],
            Work::Weight => self.weight[chunk],
        }
    }

    fn check(&self, parts: usize) -> Result<(), SimulateError> {
        let all = [("forward", &self.forward), ("input", &self.input), ("weight", &self.weight)];
        if let Some((what, costs)) = all.into_iter().find(|(_, costs)| costs.len() != parts) {
            return Err(SimulateError::Lengths { what, costs: costs.len(), parts });
        }
        let message = vec![self.message];
        let all = all.into_iter().chain([("message", &message)]);
        let mut values = all.flat_map(|(what, costs)| costs.iter().map(move |cost| (what, *cost)));
        match values.find(|(_, cost)| !cost.is_finite() || *cost < 0.0) {
            Some((what, cost)) => Err(SimulateError::NoCost { what, cost }),
            None => Ok(()),
        }
    }
}

/// Why a schedule cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulateError {
    /// It is wrong.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Costs of more or fewer chunks than there are.
    #[error("{what} costs of {costs} chunks for a schedule of {parts}")]
    Lengths {
        /// Which costs.
        what: &'static str,
        /// How many they are.
        costs: usize,
        /// How many chunks there are.
        parts: usize,
    },
    /// A cost that is no time.
    #[error("a {what} cost of {cost}: a cost is a number from 0 on")]
    NoCost {
        /// Which cost.
        what: &'static str,
        /// What it is.
        cost: f64,
    },
}

/// An action in its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// What is done.
    pub action: Action,
    /// When it begins.
    pub start: f64,
    /// When it is over.
    pub end: f64,
}

/// A schedule in time.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// What each rank does, and when.
    pub ranks: Vec<Vec<Span>>,
    /// When all is done.
    pub total: f64,
    /// The most micro-batches whose activations each rank keeps at once, in chunks.
    pub alive: Vec<usize>,
}

impl Timeline {
    /// How long a rank works.
    pub fn busy(&self, rank: usize) -> f64 {
        self.ranks[rank].iter().map(|span| span.end - span.start).sum()
    }

    /// The share of the time in which a rank waits, from 0 to 1.
    pub fn idle(&self, rank: usize) -> f64 {
        share(self.total - self.busy(rank), self.total)
    }

    /// The share of the time in which ranks wait, all together.
    pub fn idle_overall(&self) -> f64 {
        let busy: f64 = (0..self.ranks.len()).map(|rank| self.busy(rank)).sum();
        let all = self.total * self.ranks.len() as f64;
        share(all - busy, all)
    }

    /// The bubble as books have it: how much longer it takes than the rank with the most work would
    /// take without waiting, as a share of the latter.
    pub fn bubble(&self) -> f64 {
        let ideal = (0..self.ranks.len()).map(|rank| self.busy(rank)).fold(0.0, f64::max);
        share(self.total - ideal, ideal)
    }
}

/// Nothing of nothing is nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// When each rank does what. An action begins when the one before it is over and what it receives is
/// there; senders never wait.
pub fn simulate(schedule: &Schedule, costs: &Costs) -> Result<Timeline, SimulateError> {
    let order = order(schedule)?;
    costs.check(schedule.parts())?;
    let mut ranks: Vec<Vec<Span>> = vec![Vec::new(); schedule.stages];
    let mut arrivals: HashMap<Message, f64> = HashMap::new();
    let mut links: HashMap<(Way, usize), f64> = HashMap::new();
    for (rank, action) in order {
        let free = ranks[rank].last().map_or(0.0, |span| span.end);
        let message = schedule.receives(action).and_then(|message| arrivals.remove(&message));
        let start = message.unwrap_or(0.0).max(free);
        let end = start + costs.of(action);
        ranks[rank].push(Span { action, start, end });
        if let Some(message) = schedule.sends(action) {
            let link = links.entry((message.way, message.from)).or_default();
            *link = link.max(end) + costs.message;
            arrivals.insert(message, *link);
        }
    }
    let total = ranks.iter().flatten().map(|span| span.end).fold(0.0, f64::max);
    let alive = (0..schedule.stages).map(|rank| schedule.alive(rank)).collect();
    Ok(Timeline { ranks, total, alive })
}
