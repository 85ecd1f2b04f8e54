//! The nodes of a job after a check of all of them: bad ones are replaced by spares, or dropped. No I/O.

use regatta_model::hostlist;

use crate::config::JobConfig;
use crate::discovery::Discovery;
use crate::node_pool::{NodePool, PoolUpdate};

/// Why a job does not start after the check.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PreflightError {
    #[error("--preflight: a check failed that no single node is to blame for; nothing was started")]
    NoBadNode,
    #[error("--preflight: {}: {why}; nothing was started", hostlist::compress(bad))]
    TooFewNodes { bad: Vec<String>, why: String },
}

/// Reduces a job to its good nodes, the spares last. `bad` are hosts of the pool, and `has_failed` is
/// whether a check failed at all.
pub fn replace_bad_nodes(
    config: &mut JobConfig,
    discovery: &mut Discovery,
    mut pool: NodePool,
    bad: &[String],
    has_failed: bool,
) -> Result<PoolUpdate, PreflightError> {
    let update = exclude(&mut pool, &discovery.hosts(), bad, has_failed)?;
    let nodes = pool.active().iter().chain(pool.spares());
    let all = std::mem::take(&mut discovery.allocation.nodes);
    discovery.allocation.nodes = nodes.filter_map(|&node| all.get(node).cloned()).collect();
    config.spares = pool.spares().len() as u32;
    Ok(update)
}

fn exclude(
    pool: &mut NodePool,
    hosts: &[String],
    bad: &[String],
    has_failed: bool,
) -> Result<PoolUpdate, PreflightError> {
    if has_failed && bad.is_empty() {
        return Err(PreflightError::NoBadNode);
    }
    let index = |bad: &String| hosts.iter().position(|host| host == bad);
    let nodes: Vec<usize> = bad.iter().filter_map(index).collect();
    match pool.exclude(&nodes, "it failed the preflight check") {
        PoolUpdate::GiveUp(why) => Err(PreflightError::TooFewNodes { bad: bad.to_vec(), why }),
        update => Ok(update),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(
        spares: usize,
        bad: &[&str],
        has_failed: bool,
    ) -> Result<(NodePool, PoolUpdate), String> {
        let hosts: Vec<String> = (1..=5).map(|n| format!("n{n}")).collect();
        let bad: Vec<String> = bad.iter().map(|host| (*host).to_owned()).collect();
        let mut pool = NodePool::new(hosts.len(), spares, None).unwrap();
        let update = exclude(&mut pool, &hosts, &bad, has_failed).map_err(|e| e.to_string())?;
        Ok((pool, update))
    }

    #[test]
    fn bad_nodes_are_replaced_by_spares() {
        let (pool, _) = decide(2, &["n2", "n4"], true).unwrap();
        assert_eq!((pool.active(), pool.spares()), (&[0, 4, 2][..], &[][..]), "n4 was a spare");
        let (pool, update) = decide(2, &[], false).unwrap();
        assert_eq!((pool.active().len(), update), (3, PoolUpdate::Unchanged));
    }

    #[test]
    fn nothing_starts_without_enough_good_nodes() {
        let error = decide(1, &["n1", "n2"], true).unwrap_err();
        assert!(error.starts_with("--preflight: n[1-2]: 3 usable nodes left"), "{error}");
        let error = decide(1, &[], true).unwrap_err();
        assert!(error.contains("no single node"), "{error}");
    }
}
