//! What follows an attempt of a job. No I/O; the caller passes the time.

use std::time::{Duration, Instant};

use regatta_model::result::RunResult;

use crate::node_pool::{FailureCause, NodePool, PoolUpdate};
use crate::restart_backoff::RestartBackoff;

/// Decides whether a job is restarted, on which nodes and when.
#[derive(Debug)]
pub struct RestartPolicy {
    /// The nodes of the job.
    pub pool: NodePool,
    /// Maximum number of restarts.
    pub max_restarts: u32,
    /// Time after which no rank runs on a node that was declared lost: its agent notices the lost
    /// connection, and kills its ranks after the grace period. The time that the node had to reconnect
    /// before it was declared lost is the margin.
    pub fence_time: Duration,
    restarts: u32,
    backoff: RestartBackoff,
}

/// An attempt that has ended.
#[derive(Debug)]
pub struct AttemptEnd<'a> {
    /// Its result.
    pub result: &'a RunResult,
    /// Whether the user or the scheduler sent a termination signal.
    pub interrupted: bool,
    /// Nodes without a connected agent.
    pub missing: Vec<usize>,
    /// The node of the rank that failed first.
    pub failed_node: Option<usize>,
    /// When the last node was declared lost.
    pub node_lost_at: Option<Instant>,
}

/// What follows an attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The job is finished, or there is no restart left.
    Finish,
    /// Too few nodes are left to restart the job.
    GiveUp(PoolUpdate),
    /// The job is restarted.
    Restart(Restart),
}

/// A restart.
#[derive(Debug, PartialEq, Eq)]
pub struct Restart {
    /// Changes of the nodes.
    pub update: PoolUpdate,
    /// Its number, counted from 1.
    pub number: u32,
    /// The back-off.
    pub delay: Duration,
    /// The end of the back-off.
    earliest: Instant,
    /// When the agents of lost nodes have killed their ranks in any case.
    fence: Option<Instant>,
}

/// What a restart waits for.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum RestartWait {
    /// Nothing: the ranks may start.
    Ready,
    /// The end of the back-off.
    Backoff,
    /// The agents of these nodes, up to this time.
    Fence { nodes: Vec<usize>, remaining: Duration },
}

impl RestartPolicy {
    /// The policy of a job that has not started.
    pub fn new(pool: NodePool, max_restarts: u32, fence_time: Duration) -> Self {
        Self { pool, max_restarts, fence_time, restarts: 0, backoff: RestartBackoff::default() }
    }

    /// Decides what follows an attempt.
    pub fn after(&mut self, end: AttemptEnd<'_>, now: Instant) -> NextStep {
        let failed = end.result.failure.is_some() || end.result.hang.is_some();
        if !failed || self.restarts == self.max_restarts || end.interrupted {
            return NextStep::Finish;
        }
        let update = self.pool.on_failure(self.cause(end.missing, end.failed_node));
        if matches!(update, PoolUpdate::GiveUp(_)) {
            return NextStep::GiveUp(update);
        }
        self.restarts += 1;
        let delay = self.backoff.delay_after(Duration::from_secs_f64(end.result.seconds));
        NextStep::Restart(Restart {
            update,
            number: self.restarts,
            delay,
            earliest: now + delay,
            fence: end.node_lost_at.map(|at| at + self.fence_time),
        })
    }

    fn cause(&self, missing: Vec<usize>, failed_node: Option<usize>) -> FailureCause {
        let in_use = |n: &usize| self.pool.active().contains(n) || self.pool.spares().contains(n);
        let lost: Vec<usize> = missing.into_iter().filter(in_use).collect();
        match failed_node {
            _ if !lost.is_empty() => FailureCause::NodesLost(lost),
            Some(node) => FailureCause::Rank(node),
            None => FailureCause::Unknown,
        }
    }
}

impl Restart {
    /// What it waits for: a rank must not run next to its replacement. `possibly_running` are the lost nodes
    /// on which ranks may still run.
    pub fn wait(&self, now: Instant, possibly_running: impl FnOnce() -> Vec<usize>) -> RestartWait {
        let remaining = self.fence.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let nodes = if remaining.is_zero() { Vec::new() } else { possibly_running() };
        match nodes.is_empty() {
            false => RestartWait::Fence { nodes, remaining },
            true if now < self.earliest => RestartWait::Backoff,
            true => RestartWait::Ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_waits_for_the_backoff_and_until_lost_ranks_are_gone() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let wait = |delay, fence, now, running: &[usize]| {
            let restart = Restart {
                update: PoolUpdate::Unchanged,
                number: 1,
                delay: Duration::from_millis(delay),
                earliest: at(delay),
                fence: Some(at(fence)),
            };
            restart.wait(at(now), || running.to_vec())
        };
        let remaining = Duration::from_millis(1);
        assert_eq!(wait(0, 300, 299, &[0]), RestartWait::Fence { nodes: vec![0], remaining });
        assert_eq!(wait(0, 300, 300, &[0]), RestartWait::Ready, "the fence is over");
        assert_eq!(wait(300, 60_000, 299, &[]), RestartWait::Backoff);
        assert_eq!(wait(300, 60_000, 300, &[]), RestartWait::Ready, "the agent has exited");
        assert_eq!(wait(300, 0, 299, &[0]), RestartWait::Backoff, "after the fence");
    }
}
