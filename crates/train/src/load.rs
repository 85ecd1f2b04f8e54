//! Loads a trained model for inference from a run folder, a checkpoint or a Hugging Face folder.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::checkpoint::{
    self, Checkpoint, CheckpointError, Skipped, StateTensor, TensorSlice, huggingface,
};
use crate::config::Config;
use crate::training::TOKENIZER;
use regatta_device::ops::Device;
use regatta_device::tensor::Tensor;
use regatta_predict::shape::{ModelShape, ParamSpec};

/// Why a model cannot be loaded.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum LoadError {
    /// The checkpoint or the Hugging Face folder cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// No model found.
    #[error(
        "no model in {}: expected a run folder, a checkpoint, or a folder with config.json and \
        model.safetensors",
        folder.display()
    )]
    Nothing { folder: PathBuf },
    /// Only damaged checkpoints found.
    #[error("no valid checkpoint in {}: {why}", folder.display())]
    Damaged { folder: PathBuf, why: String },
}

/// A loaded model.
#[derive(Debug)]
pub struct Loaded {
    /// The model shape.
    pub shape: ModelShape,
    /// Parameters of each block.
    pub parameters: Vec<Tensor>,
    /// Its tokenizer file, if any.
    pub tokenizer: Option<PathBuf>,
    /// Fingerprint of the tokenizer it was trained with, if known.
    pub made_by: Option<String>,
    /// The folder it was read from.
    pub from: PathBuf,
    /// Steps trained, if known.
    pub step: Option<u64>,
    /// Configuration of its training, if known.
    pub config: Option<Config>,
    /// Newer checkpoints that were skipped because they are damaged.
    pub skipped: Vec<Skipped>,
}

/// Loads a Hugging Face folder, a checkpoint, or the latest valid checkpoint of a run folder.
pub fn load(folder: &Path, device: &dyn Device) -> Result<Loaded, LoadError> {
    if folder.join("config.json").is_file() {
        return from_hugging_face(folder, device);
    }
    let (checkpoint, skipped) = checkpoint::find(folder)?;
    let Some(checkpoint) = checkpoint else {
        let why = skipped.iter().flat_map(|skipped| &skipped.why).map(ToString::to_string);
        let (folder, why) = (folder.to_owned(), why.collect::<Vec<_>>().join("; "));
        return Err(match why.is_empty() {
            true => LoadError::Nothing { folder },
            false => LoadError::Damaged { folder, why },
        });
    };
    Ok(Loaded { skipped, ..from_checkpoint(&checkpoint, device)? })
}

/// Loads the model of a checkpoint.
pub fn from_checkpoint(checkpoint: &Checkpoint, device: &dyn Device) -> Result<Loaded, LoadError> {
    let (meta, from) = (checkpoint.meta(), checkpoint.folder().to_owned());
    check(checkpoint)?;
    let parameters = tensors(&meta.shape, device, |parameter, elements| {
        checkpoint.read(&parameter.name, StateTensor::Parameter, &TensorSlice::Whole, elements)
    })?;
    let tokenizer = tokenizer_of(checkpoint);
    let made_by = Some(meta.tokenizer.clone()).filter(|made_by| !made_by.is_empty());
    let (shape, step) = (meta.shape.clone(), Some(meta.step));
    // Imported models have none, and that of another version may not parse.
    let config = Some(&meta.config).filter(|config| !config.is_empty());
    let config = config.and_then(|config| Config::from_toml(&from, config).ok());
    Ok(Loaded { shape, parameters, tokenizer, made_by, from, step, config, skipped: Vec::new() })
}

/// Fails if a tensor is missing or incomplete. Checked before memory is allocated, because the declared shape
/// is not trusted.
fn check(checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    let missing = checkpoint.missing_of_kind(StateTensor::Parameter).into_iter().next();
    missing.map_or(Ok(()), Err)?;
    let blocks = checkpoint.meta().shape.blocks();
    let mut parameters = blocks.iter().flat_map(|block| &block.parameters);
    let check =
        |parameter: &ParamSpec| checkpoint.elements(&parameter.name, StateTensor::Parameter);
    parameters.try_for_each(|parameter| check(parameter).map(drop))
}

/// The tokenizer of a checkpoint: in its directory or next to it.
pub fn tokenizer_of(checkpoint: &Checkpoint) -> Option<PathBuf> {
    let folder = checkpoint.folder();
    let dirs = [Some(folder), folder.parent()].into_iter().flatten();
    dirs.map(|dir| dir.join(TOKENIZER)).find(|file| file.is_file())
}

fn from_hugging_face(folder: &Path, device: &dyn Device) -> Result<Loaded, LoadError> {
    let imported = huggingface::import(folder)?;
    let parameters = tensors(&imported.shape, device, |parameter, elements| {
        elements.copy_from_slice(&imported.read(parameter)?);
        Ok(())
    })?;
    let tokenizer = Some(folder.join(TOKENIZER)).filter(|file| file.is_file());
    let (shape, from) = (imported.shape.clone(), folder.to_owned());
    let (made_by, step, config, skipped) = (None, None, None, Vec::new());
    Ok(Loaded { shape, parameters, tokenizer, made_by, from, step, config, skipped })
}

/// One tensor per block.
fn tensors(
    shape: &ModelShape,
    device: &dyn Device,
    read: impl Fn(&ParamSpec, &mut [f32]) -> Result<(), CheckpointError>,
) -> Result<Vec<Tensor>, CheckpointError> {
    let one = |block: &regatta_predict::shape::ParamBlock| {
        let mut elements = vec![0.0; block.padded_len()];
        for parameter in &block.parameters {
            read(parameter, &mut elements[parameter.range()])?;
        }
        let mut tensor = device.zeros(block.padded_len(), device.weight_dtype());
        device.copy_from_host(&elements, tensor.view_mut());
        Ok(tensor)
    };
    shape.blocks().iter().map(one).collect()
}
