//! Ranks and agents, as processes and over real connections.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod agent_tree;
mod channel;
