//! Reads slices of tensors from a checkpoint, independent of how it was sharded. Checksums are verified
//! before data is returned.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use regatta_model::text::hex;
use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::cover::{CopySpan, cover};
use super::dir_layout::{self, MANIFEST, MANIFEST_SUM};
use super::error::{CheckpointError, Result};
use super::header::{self, TensorLocation};
use super::manifest::{self, CheckpointMeta, MAX_MANIFEST_BYTES, Manifest, StoredShard, Tensor};
use super::shard::{StateTensor, TensorSlice, key};
use crate::regular_file;

/// Bytes read at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Maximum size of the checksum file.
const MAX_SUM_BYTES: u64 = 4096;

/// A complete checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
    tensors: HashMap<(StateTensor, String), usize>,
    /// Headers of the files opened so far.
    shards: Mutex<HashMap<String, Arc<HashMap<String, TensorLocation>>>>,
    /// Shards with verified checksums, by tensor and index.
    verified: Mutex<HashSet<(usize, usize)>>,
}

impl Checkpoint {
    /// Opens a checkpoint and reads its manifest, not its tensors.
    pub fn open(folder: &Path) -> Result<Self> {
        let manifest = read_manifest(folder)?;
        let key = |(index, tensor): (usize, &Tensor)| ((tensor.kind, tensor.name.clone()), index);
        let tensors = manifest.tensors.iter().enumerate().map(key).collect();
        let (shards, verified) = (Mutex::default(), Mutex::default());
        Ok(Self { folder: folder.to_owned(), manifest, tensors, shards, verified })
    }

    /// The latest complete checkpoint in a directory, if any.
    pub fn latest(checkpoints: &Path) -> Result<Option<Self>> {
        let folders = super::find::folders(checkpoints)?;
        folders.first().map(|folder| Self::open(folder)).transpose()
    }

    /// Its directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its metadata.
    pub fn meta(&self) -> &CheckpointMeta {
        &self.manifest.meta
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Full shape of a tensor, if it exists.
    pub fn shape(&self, name: &str, kind: StateTensor) -> Option<&[usize]> {
        let index = self.tensors.get(&(kind, name.to_owned()))?;
        Some(&self.manifest.tensors[*index].shape)
    }

    /// Reads a slice of a tensor from the shards that cover it.
    pub fn read(
        &self,
        name: &str,
        kind: StateTensor,
        slice: &TensorSlice,
        elements: &mut [f32],
    ) -> Result<()> {
        let (index, tensor) = self.find(name, kind)?;
        slice.check(&tensor.shape).map_err(|why| self.wrong(tensor, why))?;
        let (needed, given) = (slice.len(&tensor.shape), elements.len());
        if needed != given {
            let why = format!("has {needed} elements in {slice}, but the buffer has {given}");
            return Err(self.wrong(tensor, why));
        }
        let mut copies = self.cover(tensor, slice)?;
        // Each file is opened once.
        copies.sort_by_key(|copy| copy.shard);
        for group in copies.chunk_by(|a, b| a.shard == b.shard) {
            self.copy(index, group, elements)?;
        }
        Ok(())
    }

    /// Reads a full tensor.
    pub fn read_whole(&self, name: &str, kind: StateTensor) -> Result<Vec<f32>> {
        let mut elements = vec![0.0; self.elements(name, kind)?];
        self.read(name, kind, &TensorSlice::Whole, &mut elements)?;
        Ok(elements)
    }

    /// Number of elements of a tensor, if the files contain all of them. The manifest is not trusted, so check
    /// this before allocating memory.
    pub fn elements(&self, name: &str, kind: StateTensor) -> Result<usize> {
        let (_, tensor) = self.find(name, kind)?;
        for stored in &tensor.shards {
            self.locate(tensor, stored)?;
        }
        self.cover(tensor, &TensorSlice::Whole)?;
        Ok(tensor.shape.iter().product())
    }

    fn find(&self, name: &str, kind: StateTensor) -> Result<(usize, &Tensor)> {
        let Some(&index) = self.tensors.get(&(kind, name.to_owned())) else {
            let (folder, tensor) = (self.folder.clone(), key(kind, name, &TensorSlice::Whole));
            return Err(CheckpointError::NoTensor { folder, tensor });
        };
        Ok((index, &self.manifest.tensors[index]))
    }

    /// Verifies that all tensors of the model are there, and all checksums. Returns the bytes verified, or all
    /// errors.
    pub fn verify(&self) -> Result<u64, Vec<CheckpointError>> {
        self.verify_share(0, 1)
    }

    /// Verifies every `of`-th shard, to distribute the work over ranks.
    pub fn verify_share(&self, share: usize, of: usize) -> Result<u64, Vec<CheckpointError>> {
        let mut wrong = Vec::new();
        let (mut bytes, mut number, mut bad) = (0, 0, HashSet::new());
        for (index, tensor) in self.manifest.tensors.iter().enumerate() {
            wrong.extend(self.cover(tensor, &TensorSlice::Whole).err());
            for (shard, stored) in tensor.shards.iter().enumerate() {
                number += 1;
                if number % of.max(1) != share || bad.contains(&stored.file) {
                    continue;
                }
                match self.verify_shard(index, shard) {
                    Ok(more) => bytes += more,
                    Err(error) => {
                        // A missing file is reported once, not for each tensor.
                        if !matches!(error, CheckpointError::Damaged { .. }) {
                            bad.insert(&stored.file);
                        }
                        wrong.push(error);
                    }
                }
            }
        }
        wrong.extend(self.missing_tensors());
        if wrong.is_empty() { Ok(bytes) } else { Err(wrong) }
    }

    fn cover(&self, tensor: &Tensor, slice: &TensorSlice) -> Result<Vec<CopySpan>> {
        let have: Vec<&TensorSlice> = tensor.shards.iter().map(|shard| &shard.slice).collect();
        cover(slice, &tensor.shape, &have).map_err(|element| {
            self.wrong(tensor, format!("is incomplete: no rank wrote element {element}"))
        })
    }

    fn copy(&self, index: usize, copies: &[CopySpan], elements: &mut [f32]) -> Result<()> {
        let Some(first) = copies.first() else { return Ok(()) };
        self.verify_shard(index, first.shard)?;
        let tensor = &self.manifest.tensors[index];
        let stored = &tensor.shards[first.shard];
        let (path, location) = self.locate(tensor, stored)?;
        let file = regular_file::open(&path).map_err(CheckpointError::io("open", &path))?;
        let mut bytes = Vec::new();
        // Coalesces adjacent reads: rows of few columns are short.
        for run in copies.chunk_by(|a, b| a.from + a.len == b.from) {
            let from = location.bytes.start + run[0].from as u64 * 4;
            bytes.resize(run.iter().map(|copy| copy.len * 4).sum(), 0);
            file.read_exact_at(&mut bytes, from).map_err(CheckpointError::io("read", &path))?;
            let mut four = bytes.as_chunks::<4>().0.iter();
            for copy in run {
                let to = &mut elements[copy.to..copy.to + copy.len];
                to.iter_mut().zip(&mut four).for_each(|(to, four)| *to = f32::from_le_bytes(*four));
            }
        }
        Ok(())
    }

    /// Verifies the checksum of a shard, unless already done.
    fn verify_shard(&self, index: usize, shard: usize) -> Result<u64> {
        let tensor = &self.manifest.tensors[index];
        let stored = &tensor.shards[shard];
        let (path, location) = self.locate(tensor, stored)?;
        let length = location.bytes.end - location.bytes.start;
        if lock(&self.verified).contains(&(index, shard)) {
            return Ok(length);
        }
        let file = regular_file::open(&path).map_err(CheckpointError::io("open", &path))?;
        let mut sum = Sha256::new();
        let mut bytes = Vec::new();
        let mut at = location.bytes.start;
        while at < location.bytes.end {
            bytes.resize(CHUNK_BYTES.min(location.bytes.end - at) as usize, 0);
            file.read_exact_at(&mut bytes, at).map_err(CheckpointError::io("read", &path))?;
            sum.update(&bytes);
            at += bytes.len() as u64;
        }
        if hex(&sum.finalize()) != stored.sha256 {
            let key = key(tensor.kind, &tensor.name, &stored.slice);
            let why = "is damaged: its checksum differs".to_owned();
            return Err(CheckpointError::Damaged { path, key, why });
        }
        lock(&self.verified).insert((index, shard));
        Ok(length)
    }

    /// The file of a shard and its location in it.
    fn locate(&self, tensor: &Tensor, stored: &StoredShard) -> Result<(PathBuf, TensorLocation)> {
        let path = self.folder.join(&stored.file);
        let known = lock(&self.shards).get(&stored.file).cloned();
        let locations = match known {
            Some(locations) => locations,
            None => {
                let locations = Arc::new(self.read_header(&path, &stored.file)?);
                lock(&self.shards).insert(stored.file.clone(), Arc::clone(&locations));
                locations
            }
        };
        let key = key(tensor.kind, &tensor.name, &stored.slice);
        let damaged = |key: String, why: String| {
            let path = path.clone();
            CheckpointError::Damaged { path, key, why }
        };
        let Some(location) = locations.get(&key) else {
            return Err(damaged(key, "is not in the file".to_owned()));
        };
        let shape = stored.slice.own_shape(&tensor.shape);
        if location.shape != shape || location.dtype != Dtype::F32 {
            let (dtype, other) = (location.dtype, &location.shape);
            let why = format!("is {dtype:?} of shape {other:?} in the file, not F32 of {shape:?}");
            return Err(damaged(key, why));
        }
        Ok((path, location.clone()))
    }

    /// Reads the header of a file.
    fn read_header(&self, path: &Path, name: &str) -> Result<HashMap<String, TensorLocation>> {
        let wrong = |why: String| CheckpointError::File { path: path.to_owned(), why };
        let file = match regular_file::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong("is missing from the checkpoint".to_owned()));
            }
            result => result.map_err(CheckpointError::io("open", path))?,
        };
        let is = file.metadata().map_err(CheckpointError::io("stat", path))?.len();
        let was = self.manifest.files.get(name).copied().unwrap_or_default();
        if is != was {
            let what = if is < was { "truncated" } else { "a different file" };
            return Err(wrong(format!("has {is} bytes instead of {was}: it is {what}")));
        }
        header::read(&file, is).map_err(wrong)
    }

    fn wrong(&self, tensor: &Tensor, why: String) -> CheckpointError {
        let (folder, tensor) = (self.folder.clone(), tensor.title());
        CheckpointError::Tensor { folder, tensor, why }
    }
}

/// Poisoning is ignored, because the data is valid at any time.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_manifest(folder: &Path) -> Result<Manifest> {
    let path = folder.join(MANIFEST);
    let wrong = |why: String| CheckpointError::File { path: path.clone(), why };
    let bytes = match regular_file::read(&path, MAX_MANIFEST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what =
                if dir_layout::is_partial(folder) { "is incomplete" } else { "does not exist" };
            return Err(wrong(format!("is missing: the checkpoint {what}")));
        }
        result => result.map_err(CheckpointError::io("read", &path))?,
    };
    let text =
        std::str::from_utf8(&bytes).map_err(|error| wrong(format!("is not UTF-8: {error}")))?;
    let sum_path = folder.join(MANIFEST_SUM);
    let sum = regular_file::read_to_string(&sum_path, MAX_SUM_BYTES);
    let matches =
        |sum: &String| sum.split_whitespace().next() == Some(&hex(&Sha256::digest(&bytes)));
    // Another version may have no checksum here. With a wrong one, the version is a flipped bit.
    if let Some(found) = manifest::other_version(text)
        && sum.as_ref().map_or(true, matches)
    {
        return Err(CheckpointError::Version { path, found });
    }
    let manifest = Manifest::parse(text).map_err(wrong)?;
    if !matches(&sum.map_err(CheckpointError::io("read", &sum_path))?) {
        return Err(wrong(format!("is damaged: it does not match {MANIFEST_SUM}")));
    }
    Ok(manifest)
}
