//! Reading a checkpoint: any part of any tensor, whatever pieces it was written in. Nothing is
//! given out whose checksum was not compared.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::cover::{Copying, cover};
use super::error::CheckpointError;
use super::folder::{self, MANIFEST, MANIFEST_SUM};
use super::header::{self, Place};
use super::manifest::{About, Manifest, Stored, Tensor};
use super::piece::{Kind, Part, key};
use super::shard::hex;

/// Bytes that are read at a time.
const AT_A_TIME: u64 = 1 << 20;

/// A complete checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
    tensors: HashMap<(Kind, String), usize>,
    /// Where the tensors of the files are that were looked into.
    shards: Mutex<HashMap<String, Arc<HashMap<String, Place>>>>,
    /// Pieces whose checksums are right, by tensor and number.
    verified: Mutex<HashSet<(usize, usize)>>,
}

impl Checkpoint {
    /// Opens the checkpoint in this folder: reads its description, not the numbers.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(folder)?;
        let key = |(index, tensor): (usize, &Tensor)| ((tensor.kind, tensor.name.clone()), index);
        let tensors = manifest.tensors.iter().enumerate().map(key).collect();
        let (shards, verified) = (Mutex::default(), Mutex::default());
        Ok(Self { folder: folder.to_owned(), manifest, tensors, shards, verified })
    }

    /// The newest complete one in a folder of checkpoints, if there is any.
    pub fn latest(checkpoints: &Path) -> Result<Option<Self>, CheckpointError> {
        let folders = super::newest::folders(checkpoints)?;
        folders.first().map(|folder| Self::open(folder)).transpose()
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it is about.
    pub fn about(&self) -> &About {
        &self.manifest.about
    }

    /// All that is said about it.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A tensor's whole shape, if it is there.
    pub fn shape(&self, name: &str, kind: Kind) -> Option<&[usize]> {
        let index = self.tensors.get(&(kind, name.to_owned()))?;
        Some(&self.manifest.tensors[*index].shape)
    }

    /// Reads a part of a tensor, from whatever pieces have it.
    pub fn read(
        &self,
        name: &str,
        kind: Kind,
        part: &Part,
        numbers: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let (index, tensor) = self.find(name, kind)?;
        part.check(&tensor.shape).map_err(|why| self.wrong(tensor, why))?;
        let (needed, given) = (part.len(&tensor.shape), numbers.len());
        if needed != given {
            let why = format!("has {needed} numbers in {part}, and room for {given} was given");
            return Err(self.wrong(tensor, why));
        }
        let mut copies = self.cover(tensor, part)?;
        // Each file is opened once.
        copies.sort_by_key(|copy| copy.piece);
        for group in copies.chunk_by(|a, b| a.piece == b.piece) {
            self.copy(index, group, numbers)?;
        }
        Ok(())
    }

    /// Reads a whole tensor.
    pub fn read_whole(&self, name: &str, kind: Kind) -> Result<Vec<f32>, CheckpointError> {
        let mut numbers = vec![0.0; self.numbers(name, kind)?];
        self.read(name, kind, &Part::Whole, &mut numbers)?;
        Ok(numbers)
    }

    /// How many numbers a tensor has, if files have them all. What a description says may be anything,
    /// so no memory should be asked for before this is known.
    pub fn numbers(&self, name: &str, kind: Kind) -> Result<usize, CheckpointError> {
        let (_, tensor) = self.find(name, kind)?;
        for stored in &tensor.pieces {
            self.place(tensor, stored)?;
        }
        self.cover(tensor, &Part::Whole)?;
        Ok(tensor.shape.iter().product())
    }

    fn find(&self, name: &str, kind: Kind) -> Result<(usize, &Tensor), CheckpointError> {
        match self.tensors.get(&(kind, name.to_owned())) {
            Some(&index) => Ok((index, &self.manifest.tensors[index])),
            None => {
                let (folder, tensor) = (self.folder.clone(), key(kind, name, &Part::Whole));
                Err(CheckpointError::NoTensor { folder, tensor })
            }
        }
    }

    /// Reads everything and compares the checksums: the bytes that are right, or all that is wrong.
    pub fn verify(&self) -> Result<u64, Vec<CheckpointError>> {
        self.verify_share(0, 1)
    }

    /// The same for a share of the pieces, so that many ranks can do it together.
    pub fn verify_share(&self, share: usize, of: usize) -> Result<u64, Vec<CheckpointError>> {
        let mut wrong = Vec::new();
        let (mut bytes, mut number, mut bad) = (0, 0, HashSet::new());
        for (index, tensor) in self.manifest.tensors.iter().enumerate() {
            wrong.extend(self.cover(tensor, &Part::Whole).err());
            for (piece, stored) in tensor.pieces.iter().enumerate() {
                number += 1;
                if number % of.max(1) != share || bad.contains(&stored.file) {
                    continue;
                }
                match self.verify_piece(index, piece) {
                    Ok(more) => bytes += more,
                    Err(error) => {
                        // A file that is missing is said once, not for each of its tensors.
                        if !matches!(error, CheckpointError::Damaged { .. }) {
                            bad.insert(&stored.file);
                        }
                        wrong.push(error);
                    }
                }
            }
        }
        if wrong.is_empty() { Ok(bytes) } else { Err(wrong) }
    }

    fn cover(&self, tensor: &Tensor, part: &Part) -> Result<Vec<Copying>, CheckpointError> {
        let have: Vec<&Part> = tensor.pieces.iter().map(|piece| &piece.part).collect();
        cover(part, &tensor.shape, &have).map_err(|place| {
            self.wrong(tensor, format!("is not all there: no rank wrote number {place}"))
        })
    }

    fn copy(
        &self,
        index: usize,
        copies: &[Copying],
        numbers: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let Some(first) = copies.first() else { return Ok(()) };
        self.verify_piece(index, first.piece)?;
        let tensor = &self.manifest.tensors[index];
        let stored = &tensor.pieces[first.piece];
        let (path, place) = self.place(tensor, stored)?;
        let file = File::open(&path).map_err(CheckpointError::io("open", &path))?;
        let mut bytes = Vec::new();
        // What follows each other in the file is read at once: rows of few columns are short.
        for run in copies.chunk_by(|a, b| a.from + a.len == b.from) {
            let from = place.bytes.start + run[0].from as u64 * 4;
            bytes.resize(run.iter().map(|copy| copy.len * 4).sum(), 0);
            file.read_exact_at(&mut bytes, from).map_err(CheckpointError::io("read", &path))?;
            let mut four = bytes.as_chunks::<4>().0.iter();
            for copy in run {
                let to = &mut numbers[copy.to..copy.to + copy.len];
                to.iter_mut().zip(&mut four).for_each(|(to, four)| *to = f32::from_le_bytes(*four));
            }
        }
        Ok(())
    }

    /// Compares the checksum of a piece, unless that was done before.
    fn verify_piece(&self, index: usize, piece: usize) -> Result<u64, CheckpointError> {
        let tensor = &self.manifest.tensors[index];
        let stored = &tensor.pieces[piece];
        let (path, place) = self.place(tensor, stored)?;
        let length = place.bytes.end - place.bytes.start;
        if lock(&self.verified).contains(&(index, piece)) {
            return Ok(length);
        }
        let file = File::open(&path).map_err(CheckpointError::io("open", &path))?;
        let mut sum = Sha256::new();
        let mut bytes = Vec::new();
        let mut at = place.bytes.start;
        while at < place.bytes.end {
            bytes.resize(AT_A_TIME.min(place.bytes.end - at) as usize, 0);
            file.read_exact_at(&mut bytes, at).map_err(CheckpointError::io("read", &path))?;
            sum.update(&bytes);
            at += bytes.len() as u64;
        }
        if hex(&sum.finalize()) != stored.sha256 {
            let key = key(tensor.kind, &tensor.name, &stored.part);
            let why = "is not as it was written: its checksum differs".to_owned();
            return Err(CheckpointError::Damaged { path, key, why });
        }
        lock(&self.verified).insert((index, piece));
        Ok(length)
    }

    /// The file of a piece and where in it the piece is.
    fn place(&self, tensor: &Tensor, stored: &Stored) -> Result<(PathBuf, Place), CheckpointError> {
        let path = self.folder.join(&stored.file);
        let known = lock(&self.shards).get(&stored.file).cloned();
        let places = match known {
            Some(places) => places,
            None => {
                let places = Arc::new(self.look_into(&path, &stored.file)?);
                lock(&self.shards).insert(stored.file.clone(), Arc::clone(&places));
                places
            }
        };
        let key = key(tensor.kind, &tensor.name, &stored.part);
        let damaged = |key: String, why: String| {
            let path = path.clone();
            CheckpointError::Damaged { path, key, why }
        };
        let Some(place) = places.get(&key) else {
            return Err(damaged(key, "is not in the file".to_owned()));
        };
        let shape = stored.part.own_shape(&tensor.shape);
        if place.shape != shape || place.dtype != Dtype::F32 {
            let (dtype, other) = (place.dtype, &place.shape);
            let why = format!("is {dtype:?} of shape {other:?} in the file, not F32 of {shape:?}");
            return Err(damaged(key, why));
        }
        Ok((path, place.clone()))
    }

    /// Reads a file's header.
    fn look_into(
        &self,
        path: &Path,
        name: &str,
    ) -> Result<HashMap<String, Place>, CheckpointError> {
        let wrong = |why: String| CheckpointError::Shard { path: path.to_owned(), why };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong("is missing from the checkpoint".to_owned()));
            }
            result => result.map_err(CheckpointError::io("open", path))?,
        };
        let is = file.metadata().map_err(CheckpointError::io("look at", path))?.len();
        let was = self.manifest.files.get(name).copied().unwrap_or_default();
        if is != was {
            let what = if is < was { "truncated" } else { "something else" };
            return Err(wrong(format!("has {is} bytes and was written with {was}: it is {what}")));
        }
        header::read(&file, is).map_err(wrong)
    }

    fn wrong(&self, tensor: &Tensor, why: String) -> CheckpointError {
        let (folder, tensor) = (self.folder.clone(), tensor.title());
        CheckpointError::Tensor { folder, tensor, why }
    }
}

/// What is behind these locks is whole at any moment.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_manifest(folder: &Path) -> Result<Manifest, CheckpointError> {
    let path = folder.join(MANIFEST);
    let wrong = |why: String| CheckpointError::Manifest { path: path.clone(), why };
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = if folder::is_partial(folder) { "was not completed" } else { "is none" };
            return Err(wrong(format!("is missing: this checkpoint {what}")));
        }
        result => result.map_err(CheckpointError::io("read", &path))?,
    };
    let sum_path = folder.join(MANIFEST_SUM);
    let sum = std::fs::read_to_string(&sum_path).map_err(CheckpointError::io("read", &sum_path))?;
    let sum = sum.split_whitespace().next().unwrap_or_default();
    let manifest = std::str::from_utf8(&bytes)
        .map_err(|error| wrong(format!("is no text: {error}")))
        .and_then(|text| Manifest::parse(text).map_err(wrong))?;
    // After the version: another one may have its checksum elsewhere.
    if hex(&Sha256::digest(&bytes)) != sum {
        return Err(wrong(format!("is not as it was written: {MANIFEST_SUM} differs")));
    }
    Ok(manifest)
}
