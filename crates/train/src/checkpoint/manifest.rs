//! `checkpoint.json`, and the sidecar files of ranks it is assembled from. No I/O. Input is not trusted.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::dir_layout;
use super::shard::{StateTensor, TensorSlice, key, matrix};
use regatta_predict::shape::ModelShape;

/// Version of the format.
pub const VERSION: u32 = 2;

/// Maximum size of a manifest or sidecar. Those of ten thousand ranks have less than a gigabyte.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 30;

/// Key in [`CheckpointMeta::extra`]: the device mesh of the ranks that wrote it.
pub const SPLIT: &str = "split";
/// Key in [`CheckpointMeta::extra`]: the run that wrote it.
pub const RUN: &str = "run";
/// Key in [`CheckpointMeta::extra`]: digest of the data.
pub const DATA: &str = "data";
/// Key in [`CheckpointMeta::extra`]: the micro-batch size that was chosen for its GPUs.
pub const MICRO_BATCH: &str = "micro_batch";

/// What training needs to resume, in addition to the tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointMeta {
    /// Steps finished.
    pub step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Random seed.
    pub seed: u64,
    /// The model shape.
    pub shape: ModelShape,
    /// The configuration, as TOML.
    pub config: String,
    /// Fingerprint of the tokenizer.
    pub tokenizer: String,
    /// Additional entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
}

/// `checkpoint.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format version.
    pub version: u32,
    /// Metadata.
    pub meta: CheckpointMeta,
    /// Number of ranks that wrote it.
    pub ranks: usize,
    /// Safetensors files and their sizes.
    pub files: BTreeMap<String, u64>,
    /// The tensors.
    pub tensors: Vec<Tensor>,
}

/// A tensor and the location of its shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Name, such as `layer.3.qkv.weight`.
    pub name: String,
    /// Parameter or moment.
    pub kind: StateTensor,
    /// Full shape.
    pub shape: Vec<usize>,
    /// Its shards; together they cover the tensor, possibly with overlaps.
    pub shards: Vec<StoredShard>,
}

/// The location of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredShard {
    /// The file that contains it, by its [`key`].
    pub file: String,
    /// The slice of the tensor.
    pub slice: TensorSlice,
    /// SHA-256 of its bytes.
    pub sha256: String,
}

/// Description of the file that a rank wrote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    /// Format version.
    pub version: u32,
    /// The step.
    pub step: u64,
    /// The rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Size of its file; 0 if it had nothing to write.
    pub bytes: u64,
    /// The shards in it.
    pub shards: Vec<WrittenShard>,
}

/// A shard that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenShard {
    /// Name of the tensor.
    pub name: String,
    /// Parameter or moment.
    pub kind: StateTensor,
    /// Full shape of the tensor.
    pub shape: Vec<usize>,
    /// The slice of the tensor.
    pub slice: TensorSlice,
    /// SHA-256 of its bytes.
    pub sha256: String,
}

/// How tensors are sharded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ShardCounts {
    /// Tensors in one shard.
    pub whole: usize,
    /// Shards that are flat ranges (ZeRO).
    pub ranges: usize,
    /// Shards that are rectangles (tensor parallelism).
    pub rectangles: usize,
}

impl Manifest {
    /// Counts shards by kind of slice.
    pub fn shard_counts(&self) -> ShardCounts {
        let mut count = ShardCounts::default();
        for shard in self.tensors.iter().flat_map(|tensor| &tensor.shards) {
            match shard.slice {
                TensorSlice::Whole => count.whole += 1,
                TensorSlice::Flat(_) => count.ranges += 1,
                TensorSlice::Rectangle { .. } => count.rectangles += 1,
            }
        }
        count
    }
}

impl Tensor {
    /// StateTensor and name, as in files.
    pub fn title(&self) -> String {
        key(self.kind, &self.name, &TensorSlice::Whole)
    }
}

impl Sidecar {
    /// Parses one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let sidecar: Self = versioned(text, "")?;
        for shard in &sidecar.shards {
            let title = key(shard.kind, &shard.name, &shard.slice);
            check_shard(&title, &shard.shape, &shard.slice, &shard.sha256)?;
        }
        Ok(sidecar)
    }
}

impl Manifest {
    /// Assembles the manifest from the sidecars, in rank order, and validates them.
    pub fn gather(meta: CheckpointMeta, sidecars: Vec<Sidecar>) -> Result<Self, String> {
        let ranks = sidecars.len();
        let mut files = BTreeMap::new();
        let mut tensors: BTreeMap<(StateTensor, String), Tensor> = BTreeMap::new();
        for (rank, sidecar) in sidecars.into_iter().enumerate() {
            let file = dir_layout::shard(rank);
            if sidecar.bytes > 0 {
                files.insert(file.clone(), sidecar.bytes);
            }
            for WrittenShard { name, kind, shape, slice, sha256 } in sidecar.shards {
                let entry = tensors.entry((kind, name.clone()));
                let empty = || Tensor { name, kind, shape: shape.clone(), shards: Vec::new() };
                let tensor = entry.or_insert_with(empty);
                if tensor.shape != shape {
                    let (title, known) = (tensor.title(), &tensor.shape);
                    return Err(format!(
                        "rank {rank} has {title} of shape {shape:?}, previous ranks {known:?}"
                    ));
                }
                tensor.shards.push(StoredShard { file: file.clone(), slice, sha256 });
            }
        }
        let tensors = tensors.into_values().collect();
        Ok(Self { version: VERSION, meta, ranks, files, tensors })
    }

    /// Parses and validates one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let manifest: Self = versioned(text, "; use an earlier checkpoint of the run")?;
        manifest.meta.shape.check()?;
        for name in manifest.files.keys() {
            let ranks = manifest.ranks;
            if dir_layout::rank_of_shard(name).is_none_or(|rank| rank >= ranks) {
                return Err(format!("{name:?} is not a file of one of its {ranks} ranks"));
            }
        }
        let mut titles = BTreeSet::new();
        for tensor in &manifest.tensors {
            let title = tensor.title();
            for shard in &tensor.shards {
                check_shard(&title, &tensor.shape, &shard.slice, &shard.sha256)?;
                if !manifest.files.contains_key(&shard.file) {
                    return Err(format!("{title} is in {:?}, which is not listed", shard.file));
                }
            }
            // Shapes of tensors without shards are not checked above.
            matrix(&tensor.shape).ok_or_else(|| format!("{title} has an invalid shape"))?;
            if !titles.insert(title) {
                return Err(format!("{} is described twice", tensor.title()));
            }
        }
        Ok(manifest)
    }
}

/// Serialises a manifest or a sidecar.
pub fn to_text<T: Serialize>(document: &T) -> String {
    // Serialising these types is infallible.
    let mut text = serde_json::to_string_pretty(document).unwrap_or_default();
    text.push('\n');
    text
}

/// What all versions have in common.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

/// The format version of a manifest, if it is another one than [`VERSION`].
pub(super) fn other_version(text: &str) -> Option<u32> {
    let AnyVersion { version } = serde_json::from_str(text).ok()?;
    (version != VERSION).then_some(version)
}

/// Checks the version first, because other versions may differ in everything else. `fix` is for damaged files.
fn versioned<T: DeserializeOwned>(text: &str, fix: &str) -> Result<T, String> {
    let damaged = |error: serde_json::Error| format!("is damaged: {error}{fix}");
    let AnyVersion { version } = serde_json::from_str(text).map_err(damaged)?;
    if version != VERSION {
        return Err(format!("has format version {version}, expected {VERSION}"));
    }
    serde_json::from_str(text).map_err(damaged)
}

fn check_shard(title: &str, shape: &[usize], slice: &TensorSlice, sum: &str) -> Result<(), String> {
    slice.check(shape).map_err(|why| format!("{title} {why}"))?;
    let is_valid = sum.len() == 64 && sum.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_valid.then_some(()).ok_or_else(|| format!("{title} has an invalid SHA-256 {sum:?}"))
}
