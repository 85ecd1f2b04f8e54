//! The nodes of a job after a check of all of them: bad ones are replaced by spares, or dropped. No I/O.

use regatta_model::{AllocatedNode, hostlist};

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
    nodes: &mut Vec<AllocatedNode>,
    spares: &mut u32,
    mut pool: NodePool,
    bad: &[String],
    has_failed: bool,
) -> Result<PoolUpdate, PreflightError> {
    if has_failed && bad.is_empty() {
        return Err(PreflightError::NoBadNode);
    }
    let is_bad = |node: &usize| bad.contains(&nodes[*node].host);
    let excluded: Vec<usize> = (0..nodes.len()).filter(is_bad).collect();
    let update = pool.exclude(&excluded, "it failed the preflight check");
    if let PoolUpdate::GiveUp(why) = update {
        return Err(PreflightError::TooFewNodes { bad: bad.to_vec(), why });
    }
    let left = pool.active().iter().chain(pool.spares());
    *nodes = left.map(|&node| nodes[node].clone()).collect();
    *spares = pool.spares().len() as u32;
    Ok(update)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hosts of a job on `n1` to `n5` after the check, of which the last are spares, and their number.
    fn checked(
        mut spares: u32,
        bad: &[&str],
        has_failed: bool,
    ) -> Result<(Vec<String>, u32, PoolUpdate), String> {
        let node = |n| AllocatedNode { host: format!("n{n}"), ranks: None };
        let mut nodes: Vec<AllocatedNode> = (1..=5).map(node).collect();
        let bad: Vec<String> = bad.iter().map(|host| (*host).to_owned()).collect();
        let pool = NodePool::new(nodes.len(), spares as usize, None).unwrap();
        let update = replace_bad_nodes(&mut nodes, &mut spares, pool, &bad, has_failed);
        let hosts = nodes.into_iter().map(|node| node.host).collect();
        update.map(|update| (hosts, spares, update)).map_err(|error| error.to_string())
    }

    #[test]
    fn bad_nodes_are_replaced_by_spares() {
        let (hosts, spares, _) = checked(2, &["n2", "n4"], true).unwrap();
        assert_eq!((hosts.join(" "), spares), ("n1 n5 n3".to_owned(), 0), "n4 was a spare");
        let (hosts, spares, _) = checked(2, &["n1"], true).unwrap();
        assert_eq!((hosts.join(" "), spares), ("n4 n2 n3 n5".to_owned(), 1));
        let (hosts, spares, update) = checked(2, &[], false).unwrap();
        assert_eq!((hosts.len(), spares, update), (5, 2, PoolUpdate::Unchanged));
    }

    #[test]
    fn nothing_starts_without_enough_good_nodes() {
        let error = checked(1, &["n1", "n2"], true).unwrap_err();
        assert!(error.starts_with("--preflight: n[1-2]: 3 usable nodes left"), "{error}");
        let error = checked(1, &[], true).unwrap_err();
        assert!(error.contains("no single node"), "{error}");
    }
}
