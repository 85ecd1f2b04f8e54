//! A trained model, to be used: from a checkpoint, a run's folder, or a folder of Hugging Face's.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::huggingface::{self, HuggingFaceError};
use crate::checkpoint::{Checkpoint, CheckpointError, Kind, MANIFEST, Part, newest_good};
use crate::device::Device;
use crate::job::{CHECKPOINTS, TOKENIZER};
use crate::memory::Tensor;
use crate::shape::{Parameter, Shape};

/// Why there is no model.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A folder of Hugging Face's cannot be read.
    #[error(transparent)]
    HuggingFace(#[from] HuggingFaceError),
    /// There is nothing.
    #[error(
        "{} has no model: name a run's folder, a checkpoint, or a folder with config.json and \
         model.safetensors{}",
        folder.display(),
        if damaged.is_empty() { String::new() } else { format!(" ({damaged})") }
    )]
    Nothing {
        /// Where it was looked for.
        folder: PathBuf,
        /// What was found, and is damaged.
        damaged: String,
    },
}

/// A model with its parameters.
#[derive(Debug)]
pub struct Loaded {
    /// What it is.
    pub shape: Shape,
    /// Parameters of each block.
    pub parameters: Vec<Tensor>,
    /// The file that says what its tokens mean, if there is one.
    pub tokenizer: Option<PathBuf>,
    /// What it was read from.
    pub from: PathBuf,
    /// After how many steps, where that is known.
    pub step: Option<u64>,
}

/// Reads the model in a folder: the newest good checkpoint of a run's, a checkpoint, or Hugging
/// Face's.
pub fn load(folder: &Path, device: &dyn Device) -> Result<Loaded, LoadError> {
    if folder.join("config.json").is_file() {
        return from_hugging_face(folder, device);
    }
    match Checkpoint::open(folder) {
        Ok(checkpoint) => return from_checkpoint(&checkpoint, device),
        Err(error) if folder.join(MANIFEST).exists() => return Err(error.into()),
        Err(_) => {}
    }
    let inside = folder.join(CHECKPOINTS);
    let (checkpoint, skipped) = newest_good(if inside.is_dir() { &inside } else { folder })?;
    let Some(checkpoint) = checkpoint else {
        let why = skipped.iter().flat_map(|skipped| &skipped.why).map(ToString::to_string);
        let damaged = why.collect::<Vec<_>>().join("; ");
        return Err(LoadError::Nothing { folder: folder.to_owned(), damaged });
    };
    from_checkpoint(&checkpoint, device)
}

/// Reads the model of a checkpoint.
pub fn from_checkpoint(checkpoint: &Checkpoint, device: &dyn Device) -> Result<Loaded, LoadError> {
    let (about, from) = (checkpoint.about(), checkpoint.folder().to_owned());
    let parameters = tensors(&about.shape, device, |parameter, numbers| {
        checkpoint.read(&parameter.name, Kind::Parameter, &Part::Whole, numbers)
    })?;
    // In the checkpoint itself, or beside all of them.
    let places = [Some(from.as_path()), from.parent()];
    let tokenizer = places.into_iter().flatten().map(|place| place.join(TOKENIZER));
    let tokenizer = tokenizer.into_iter().find(|file| file.is_file());
    Ok(Loaded { shape: about.shape.clone(), parameters, tokenizer, from, step: Some(about.step) })
}

fn from_hugging_face(folder: &Path, device: &dyn Device) -> Result<Loaded, LoadError> {
    let imported = huggingface::import(folder)?;
    let parameters = tensors(&imported.shape, device, |parameter, numbers| {
        numbers.copy_from_slice(&imported.read(parameter)?);
        Ok::<_, HuggingFaceError>(())
    })?;
    let tokenizer = Some(folder.join(TOKENIZER)).filter(|file| file.is_file());
    let (shape, from) = (imported.shape.clone(), folder.to_owned());
    Ok(Loaded { shape, parameters, tokenizer, from, step: None })
}

/// A tensor for each block, whose parameters are read one after the other.
fn tensors<E>(
    shape: &Shape,
    device: &dyn Device,
    read: impl Fn(&Parameter, &mut [f32]) -> Result<(), E>,
) -> Result<Vec<Tensor>, E> {
    let one = |block: &crate::shape::Block| {
        let mut numbers = vec![0.0; block.room()];
        for parameter in &block.parameters {
            read(parameter, &mut numbers[parameter.range()])?;
        }
        let mut tensor = device.real(block.room());
        device.put(&numbers, tensor.view_mut());
        Ok(tensor)
    };
    shape.blocks().iter().map(one).collect()
}
