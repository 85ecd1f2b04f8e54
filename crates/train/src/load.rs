//! A trained model, to be used: from a checkpoint, a run's folder, or a folder of Hugging Face's.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::huggingface::{self, HuggingFaceError};
use crate::checkpoint::{Checkpoint, CheckpointError, Kind, MANIFEST, Part, newest_good};
use crate::job::TOKENIZER;
use crate::run;
use regatta_device::device::Device;
use regatta_device::memory::Tensor;
use regatta_predict::shape::{Parameter, Shape};

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
    /// The fingerprint of the tokenizer that it was trained with, where that is known.
    pub made_by: Option<String>,
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
    let (checkpoint, skipped) = newest_good(&run::kept_in(folder))?;
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
    check(checkpoint)?;
    let parameters = tensors(&about.shape, device, |parameter, numbers| {
        checkpoint.read(&parameter.name, Kind::Parameter, &Part::Whole, numbers)
    })?;
    let tokenizer = tokenizer_of(checkpoint);
    let made_by = Some(about.tokenizer.clone()).filter(|made_by| !made_by.is_empty());
    let (shape, step) = (about.shape.clone(), Some(about.step));
    Ok(Loaded { shape, parameters, tokenizer, made_by, from, step })
}

/// Files have the numbers of all parameters: memory is asked for only then, for what is said of a
/// model may be anything.
fn check(checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    let shape = &checkpoint.about().shape;
    if shape.layers > checkpoint.manifest().tensors.len() {
        let folder = checkpoint.folder().to_owned();
        let tensor = format!("parameters of {} layers", shape.layers);
        return Err(CheckpointError::NoTensor { folder, tensor });
    }
    for parameter in shape.blocks().iter().flat_map(|block| &block.parameters) {
        let (is, should) = (checkpoint.numbers(&parameter.name, Kind::Parameter)?, parameter.len());
        if is != should {
            let (folder, tensor) = (checkpoint.folder().to_owned(), parameter.name.clone());
            let why = format!("has {is} numbers, and by its model should have {should}");
            return Err(CheckpointError::Tensor { folder, tensor, why });
        }
    }
    Ok(())
}

/// The file that says what the tokens of a checkpoint mean: in it, or beside all of them.
pub fn tokenizer_of(checkpoint: &Checkpoint) -> Option<PathBuf> {
    let folder = checkpoint.folder();
    let places = [Some(folder), folder.parent()].into_iter().flatten();
    places.map(|place| place.join(TOKENIZER)).find(|file| file.is_file())
}

fn from_hugging_face(folder: &Path, device: &dyn Device) -> Result<Loaded, LoadError> {
    let imported = huggingface::import(folder)?;
    let parameters = tensors(&imported.shape, device, |parameter, numbers| {
        numbers.copy_from_slice(&imported.read(parameter)?);
        Ok::<_, HuggingFaceError>(())
    })?;
    let tokenizer = Some(folder.join(TOKENIZER)).filter(|file| file.is_file());
    let (shape, from) = (imported.shape.clone(), folder.to_owned());
    Ok(Loaded { shape, parameters, tokenizer, made_by: None, from, step: None })
}

/// A tensor for each block, whose parameters are read one after the other.
fn tensors<E>(
    shape: &Shape,
    device: &dyn Device,
    read: impl Fn(&Parameter, &mut [f32]) -> Result<(), E>,
) -> Result<Vec<Tensor>, E> {
    let one = |block: &regatta_predict::shape::Block| {
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
