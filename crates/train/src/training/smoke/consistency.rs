//! Checks that replicas have bit-identical state.

use regatta_comm::Comm;
use regatta_model::text::hex;
use sha2::{Digest, Sha256};

use super::rank_notes::most_common;
use crate::checkpoint::StateTensor;
use crate::parallel::ProcessGroups;
use crate::step::Engine;
use crate::training::gather::all_gather;
use crate::training::{Result, checkpointing};

/// SHA-256 of this rank's parameters and optimizer state.
pub fn digest(engine: &mut Engine) -> Result<String> {
    let mut sum = Sha256::new();
    let mut elements = Vec::new();
    for block in engine.state.local_blocks() {
        for kind in StateTensor::ALL {
            for chunk in checkpointing::chunks(engine.state.shards[block].clone()) {
                elements.resize(chunk.len(), 0.0);
                checkpointing::fetch(engine, (block, kind), chunk.start, &mut elements)?;
                let bytes: Vec<u8> = elements.iter().flat_map(|n| n.to_le_bytes()).collect();
                sum.update(&bytes);
            }
        }
    }
    Ok(hex(&sum.finalize()))
}

/// Identifies the ranks with the same state: tensor-parallel rank, stage and shard.
fn replica_key(engine: &Engine) -> (usize, usize, usize) {
    let ProcessGroups { mesh, coord, .. } = &engine.groups;
    (coord.tp, coord.pp, coord.data_rank(mesh) % engine.state.shard_count)
}

/// The ranks whose state differs from that of their replicas, as text.
pub fn mismatch(comm: &dyn Comm, engine: &mut Engine) -> Result<Option<String>> {
    let all: Vec<RankDigest> = all_gather(comm, &(replica_key(engine), digest(engine)?))?;
    Ok(message_for(&mismatched(&all), &|rank| comm.peer(rank).to_string()))
}

/// What identifies the replicas of a rank, and the digest of its state.
type RankDigest = ((usize, usize, usize), String);

/// The ranks that differ from the majority of their replicas; in a tie, from the first.
fn mismatched(all: &[RankDigest]) -> Vec<u32> {
    let is_odd = |one: &RankDigest| {
        let replicas = all.iter().filter(|other| other.0 == one.0);
        let digests: Vec<String> = replicas.map(|other| other.1.clone()).collect();
        most_common(&digests) != Some(&one.1)
    };
    (0..).zip(all).filter(|(_, one)| is_odd(one)).map(|(rank, _)| rank).collect()
}

/// A message with the first few ranks.
fn message_for(mismatched: &[u32], name: &dyn Fn(u32) -> String) -> Option<String> {
    const SHOWN: usize = 4;
    let shown: Vec<String> = mismatched.iter().take(SHOWN).map(|rank| name(*rank)).collect();
    let more = match mismatched.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let verb = if mismatched.len() == 1 { "has" } else { "have" };
    (!mismatched.is_empty()).then(|| {
        format!("{}{more} {verb} different parameters than the other ranks", shown.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(all: &[&str]) -> Option<String> {
        let all: Vec<RankDigest> = all.iter().map(|&one| ((0, 0, 0), one.to_owned())).collect();
        message_for(&mismatched(&all), &|rank| format!("rank {rank} on n{rank}"))
    }

    #[test]
    fn ranks_that_differ_from_the_majority_are_named() {
        assert_eq!(message(&["a"; 5]), None);
        let one = message(&["a", "b", "b"]).unwrap();
        assert!(one.starts_with("rank 0 on n0 has different parameters"), "{one}");
        let two = message(&["a", "b"]).unwrap();
        assert!(two.starts_with("rank 1 on n1 has"), "{two}");
        let many = message(&["a", "a", "a", "a", "a", "a", "b", "c", "d", "e", "f"]).unwrap();
        assert!(many.contains("rank 9 on n9 and 1 more have"), "{many}");
    }

    #[test]
    fn ranks_with_different_shards_may_differ() {
        let one = |tp: usize, digest: &str| ((tp, 0, 0), digest.to_owned());
        let all = [one(0, "a"), one(1, "b"), one(0, "a"), one(1, "b")];
        assert_eq!(mismatched(&all), [0u32; 0]);
        let all = [one(0, "a"), one(1, "b"), one(0, "b"), one(1, "b")];
        assert_eq!(mismatched(&all), [2]);
    }
}
