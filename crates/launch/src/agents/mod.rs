//! A job on many nodes: a coordinator, and an agent per node that runs the node's ranks.
//!
//! Agents connect in a tree rooted at the coordinator. [`agent_state`] and [`node_table`] implement
//! the protocol without I/O; [`agent`] and [`coordinator`] drive them.

pub mod agent;
pub mod agent_state;
pub mod bootstrap_document;
pub mod coordinator;
pub mod message;
pub mod node;
pub mod node_table;
mod routes;
#[cfg(test)]
mod simulation;
pub mod tree;
