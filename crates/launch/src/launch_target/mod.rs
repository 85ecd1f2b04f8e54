//! Where the ranks of a job run: on this node, or on nodes with agents.

mod agent_commands;
mod agents;
mod connect;
mod local;
mod node_launch;
mod temp_file;

use std::time::Duration;

use crate::attempt::AttemptSpec;
use crate::error::Result;
use crate::status::JobObserver;
use crate::worker_group::WorkerGroup;

pub use agent_commands::{AgentCommands, described_step_options};
pub(crate) use agents::AgentTarget;
pub(crate) use connect::AgentConnector;
pub(crate) use local::LocalTarget;

/// Where the ranks of a job run. Nodes are indices into the hosts of its allocation.
pub trait LaunchTarget {
    /// Plans an attempt, counted from 0, on these nodes.
    fn plan(&mut self, attempt: u32, nodes: &[usize]) -> Result<AttemptSpec>;

    /// Starts the ranks.
    fn start(
        &mut self,
        attempt: &AttemptSpec,
        observer: &mut dyn JobObserver,
    ) -> Result<&mut dyn WorkerGroup>;

    /// Handles events of the agents for this time, between two attempts.
    fn poll(&mut self, timeout: Duration);

    /// Nodes without a connected agent.
    fn missing(&self) -> Vec<usize>;

    /// Those of these lost nodes on which ranks of an attempt may still run.
    fn possibly_running(&mut self, lost: &[u32]) -> Vec<usize>;

    /// Shuts down after the last attempt.
    fn shutdown(self: Box<Self>, observer: &mut dyn JobObserver);
}
