//! The contents of checkpoints, to compare them bit by bit.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::harness::Harness;
use crate::support::from_json;

/// The SHA-256 of every shard of a checkpoint, by file, kind, name and slice.
pub type ShardDigests = BTreeMap<String, String>;

/// The digests of a run's checkpoint at a step, after its files have been verified against them.
pub fn shard_digests(harness: &Harness, run: &str, step: u64) -> ShardDigests {
    let dir = format!("{run}/checkpoints/step-{step:08}");
    let verified = harness.regatta(&format!("checkpoint verify {dir}")).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let manifest: Value = from_json(&harness.folder.read(format!("{dir}/checkpoint.json")));
    let digests = manifest["tensors"].as_array().unwrap().iter().flat_map(|tensor| {
        let about = format!("{} {}", tensor["kind"], tensor["name"]);
        let shards = tensor["shards"].as_array().unwrap().iter();
        shards.map(move |shard| {
            let key = format!("{about} {} {}", shard["file"], shard["slice"]);
            (key, shard["sha256"].as_str().unwrap().to_owned())
        })
    });
    let digests: ShardDigests = digests.collect();
    assert!(!digests.is_empty(), "{manifest}");
    digests
}

/// Asserts that two checkpoints have the same parameters and optimizer state, bit by bit.
#[track_caller]
pub fn assert_same_state(run: &ShardDigests, expected: &ShardDigests) {
    assert!(run.keys().eq(expected.keys()), "different shards: {run:?}, {expected:?}");
    let differing: Vec<&String> =
        run.keys().filter(|key| run.get(*key) != expected.get(*key)).collect();
    let (count, total) = (differing.len(), run.len());
    assert!(differing.is_empty(), "{count} of {total} shards differ: {differing:#?}");
}
