//! A job on many nodes: a coordinator, and on each node an agent that runs the node's ranks.
//!
//! Agents connect in a tree whose root is the coordinator. [`member`] and [`roll`] decide, without
//! I/O, what an agent and the coordinator do; [`agent`] and [`coordinator`] carry it out.

pub mod agent;
pub mod boot;
pub mod coordinator;
pub mod member;
pub mod message;
pub mod roll;
mod routes;
#[cfg(test)]
mod storm;
pub mod tree;
