//! Simulation of a schedule: when each rank computes and how long it idles.

use std::collections::HashMap;

use super::Computation::{Backward, BackwardInput, BackwardWeight, Forward};
use super::check::{ScheduleFault, order};
use super::{Action, Direction, Message, Schedule};

/// Durations of the passes of each chunk and of a message, in any unit.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkCosts {
    /// Forward pass.
    pub forward: Vec<f64>,
    /// Input gradient.
    pub backward_input: Vec<f64>,
    /// Weight gradients.
    pub backward_weight: Vec<f64>,
    /// A message from send to arrival; a link carries one at a time.
    pub message: f64,
}

impl ChunkCosts {
    /// Forward, input gradient and weight gradients take a third of a chunk's cost each, as their GEMMs
    /// are equal. Messages take no time.
    pub fn equal_thirds(chunks: &[f64]) -> Self {
        let third: Vec<f64> = chunks.iter().map(|cost| cost / 3.0).collect();
        let (forward, backward_input) = (third.clone(), third.clone());
        Self { forward, backward_input, backward_weight: third, message: 0.0 }
    }

    fn duration(&self, action: Action) -> f64 {
        let Action { computation, chunk, .. } = action;
        match computation {
            Forward => self.forward[chunk],
            Backward => self.backward_input[chunk] + self.backward_weight[chunk],
            BackwardInput => self.backward_input[chunk],
            BackwardWeight => self.backward_weight[chunk],
        }
    }

    fn check(&self, chunks: usize) -> Result<(), SimulateError> {
        let all = [
            ("forward", &self.forward),
            ("backward-input", &self.backward_input),
            ("backward-weight", &self.backward_weight),
        ];
        if let Some((what, costs)) = all.into_iter().find(|(_, costs)| costs.len() != chunks) {
            return Err(SimulateError::Lengths { what, costs: costs.len(), chunks });
        }
        let message = vec![self.message];
        let all = all.into_iter().chain([("message", &message)]);
        let mut values = all.flat_map(|(what, costs)| costs.iter().map(move |cost| (what, *cost)));
        match values.find(|(_, cost)| !cost.is_finite() || *cost < 0.0) {
            Some((what, cost)) => Err(SimulateError::InvalidCost { what, cost }),
            None => Ok(()),
        }
    }
}

/// A schedule that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum SimulateError {
    /// The schedule is invalid.
    #[error(transparent)]
    Fault(#[from] ScheduleFault),
    /// The number of costs is not the number of chunks.
    #[error("{costs} {what} costs for a schedule of {chunks} chunks")]
    Lengths { what: &'static str, costs: usize, chunks: usize },
    /// A negative or non-finite cost.
    #[error("{what} cost {cost} is not a finite number >= 0")]
    InvalidCost { what: &'static str, cost: f64 },
}

/// An action with its start and end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// Start time.
    pub start: f64,
    /// End time.
    pub end: f64,
}

/// A simulated schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The spans of each rank.
    pub ranks: Vec<Vec<Span>>,
    /// Duration of the step.
    pub total: f64,
}

impl Timeline {
    /// Compute time of a rank.
    pub fn busy(&self, rank: usize) -> f64 {
        self.ranks[rank].iter().map(|span| span.end - span.start).sum()
    }

    /// Idle fraction of a rank.
    pub fn idle(&self, rank: usize) -> f64 {
        ratio(self.total - self.busy(rank), self.total)
    }

    /// Idle fraction over all ranks.
    pub fn idle_overall(&self) -> f64 {
        let busy: f64 = (0..self.ranks.len()).map(|rank| self.busy(rank)).sum();
        let all = self.total * self.ranks.len() as f64;
        ratio(all - busy, all)
    }

    /// Bubble ratio as in the literature: idle time over compute time of the busiest rank.
    pub fn bubble(&self) -> f64 {
        let ideal = (0..self.ranks.len()).map(|rank| self.busy(rank)).fold(0.0, f64::max);
        ratio(self.total - ideal, ideal)
    }
}

fn ratio(part: f64, total: f64) -> f64 {
    if total > 0.0 { part / total } else { 0.0 }
}

/// Simulates a schedule. An action starts when the previous one of its rank is done and its message has
/// arrived; sends do not block.
pub fn simulate(schedule: &Schedule, costs: &ChunkCosts) -> Result<Timeline, SimulateError> {
    let order = order(schedule)?;
    costs.check(schedule.num_chunks())?;
    let mut ranks: Vec<Vec<Span>> = vec![Vec::new(); schedule.stages];
    let mut arrivals: HashMap<Message, f64> = HashMap::new();
    let mut links: HashMap<(Direction, usize), f64> = HashMap::new();
    for (rank, action) in order {
        let free = ranks[rank].last().map_or(0.0, |span| span.end);
        let message = schedule.receives(action).and_then(|message| arrivals.remove(&message));
        let start = message.unwrap_or(0.0).max(free);
        let end = start + costs.duration(action);
        ranks[rank].push(Span { action, start, end });
        if let Some(message) = schedule.sends(action) {
            let link = links.entry((message.direction, message.from)).or_default();
            *link = link.max(end) + costs.message;
            arrivals.insert(message, *link);
        }
    }
    let total = ranks.iter().flatten().map(|span| span.end).fold(0.0, f64::max);
    Ok(Timeline { ranks, total })
}
