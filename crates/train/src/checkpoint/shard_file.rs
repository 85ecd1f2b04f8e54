//! A rank's safetensors file.

use std::collections::HashSet;
use std::path::Path;

use regatta_model::text::hex;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use sha2::{Digest, Sha256};

use super::disk::Disk;
use super::error::{CheckpointError, Result};
use super::header;
use super::manifest::WrittenShard;
use super::shard::{Shard, ShardMeta, key};

/// Elements that are converted, hashed and written at a time.
const CHUNK_LEN: usize = 1 << 18;

/// The layout of a file, without the data.
#[derive(Debug)]
pub(super) struct ShardFileLayout {
    header: Vec<u8>,
    /// Size of the file.
    pub bytes: u64,
}

/// Validates the shards and lays them out.
pub(super) fn lay_out(shards: &[ShardMeta]) -> Result<ShardFileLayout> {
    let mut keys = HashSet::new();
    let mut infos = Vec::with_capacity(shards.len());
    let mut end = 0;
    for shard in shards {
        shard.slice.check(&shard.shape).map_err(|why| refuse(&shard.name, why))?;
        let key = key(shard.kind, &shard.name, &shard.slice);
        let start = end;
        end += shard.slice.len(&shard.shape) * size_of::<f32>();
        let shape = shard.slice.own_shape(&shard.shape);
        let data_offsets = (start, end);
        infos.push((key.clone(), TensorInfo { dtype: Dtype::F32, shape, data_offsets }));
        if !keys.insert(key) {
            return Err(refuse(&shard.name, "is listed twice".to_owned()));
        }
    }
    let header = header::write(None, infos).map_err(|why| {
        let name = shards.first().map_or_else(String::new, |shard| shard.name.clone());
        CheckpointError::InvalidShard { name, why }
    })?;
    let bytes = (header.len() + end) as u64;
    Ok(ShardFileLayout { header, bytes })
}

/// Fails if a shard has the wrong number of elements.
pub(super) fn check(shard: &Shard) -> Result<()> {
    let ShardMeta { name, shape, slice, .. } = &shard.meta;
    let (needed, given) = (slice.len(shape), shard.elements.len());
    if needed != given {
        let why = format!("has {given} elements for its slice {slice} of {needed}");
        return Err(refuse(name, why));
    }
    Ok(())
}

fn refuse(name: &str, why: String) -> CheckpointError {
    CheckpointError::InvalidShard { name: name.to_owned(), why }
}

/// Writes and syncs the file. The shards must be those that were laid out.
pub(super) fn write(
    disk: &dyn Disk,
    path: &Path,
    layout: &ShardFileLayout,
    shards: impl Iterator<Item = Result<Shard>>,
) -> Result<Vec<WrittenShard>> {
    let failed = || CheckpointError::writing(path, layout.bytes);
    let mut file = disk.create(path).map_err(failed())?;
    file.write(&layout.header).map_err(failed())?;
    let mut written = Vec::new();
    let mut bytes = Vec::new();
    for shard in shards {
        let shard = shard?;
        check(&shard)?;
        let Shard { meta: ShardMeta { name, kind, shape, slice }, elements } = shard;
        let mut sum = Sha256::new();
        for chunk in elements.chunks(CHUNK_LEN) {
            bytes.clear();
            bytes.extend(chunk.iter().flat_map(|element| element.to_le_bytes()));
            sum.update(&bytes);
            file.write(&bytes).map_err(failed())?;
        }
        written.push(WrittenShard { name, kind, shape, slice, sha256: hex(&sum.finalize()) });
    }
    file.sync().map_err(failed())?;
    Ok(written)
}
