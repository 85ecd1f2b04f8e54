//! Exports a model for `transformers`, one tensor at a time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::super::header;
use super::config;
use super::names::{self, HfSource};
use crate::checkpoint::{CheckpointError, MANIFEST, Result, has_checkpoint};
use crate::data::Tokenizer;
use regatta_model::run_folder;
use regatta_predict::shape::{Family, ModelShape, ParamSpec};

/// The weights file.
pub(super) const MODEL: &str = "model.safetensors";

/// The model's configuration.
const CONFIG: &str = "config.json";
/// The tokenizer and its configuration.
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Class of any `tokenizer.json`. Clean-up would remove spaces before punctuation.
const TOKENIZER_CLASS: &str = "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \
                               \"clean_up_tokenization_spaces\": false}\n";

/// Writes `config.json`, `model.safetensors` and the tokenizer, if any, to a folder. `elements` is called once
/// per parameter. Existing files are overwritten only if `overwrite` is set, and a run folder never is the
/// target.
pub fn export(
    folder: &Path,
    shape: &ModelShape,
    elements: &mut dyn FnMut(&str) -> Result<Vec<f32>>,
    tokenizer: Option<&Tokenizer>,
    overwrite: bool,
) -> Result<()> {
    let config = config::to_text(shape).map_err(|why| CheckpointError::Shape { why })?;
    check_target(folder, tokenizer.is_some(), overwrite)?;
    let is_new = !folder.exists();
    fs::create_dir_all(folder).map_err(CheckpointError::io("create", folder))?;
    // Renamed when complete, so that a partial export is not taken for a model.
    let (path, partial) = (folder.join(MODEL), folder.join("model.safetensors.partial"));
    write_model(&partial, shape, elements).inspect_err(|_| {
        let _ = fs::remove_file(&partial);
        if is_new {
            let _ = fs::remove_dir(folder);
        }
    })?;
    write(&folder.join(CONFIG), config.as_bytes())?;
    if let Some(tokenizer) = tokenizer {
        write(&folder.join(TOKENIZER), &tokenizer.to_hugging_face())?;
        write(&folder.join(TOKENIZER_CONFIG), TOKENIZER_CLASS.as_bytes())?;
    }
    fs::rename(&partial, &path).map_err(CheckpointError::io("write", &path))?;
    Ok(())
}

/// Fails if the export would overwrite files or turn a run folder into a model.
fn check_target(folder: &Path, with_tokenizer: bool, overwrite: bool) -> Result<()> {
    let exists = |name: &&str| folder.join(name).exists();
    let of_run = [run_folder::CONFIG, run_folder::CHECKPOINTS, run_folder::METRICS, MANIFEST];
    if of_run.iter().any(exists) || has_checkpoint(folder).unwrap_or(false) {
        return Err(CheckpointError::RunFolder { folder: folder.to_owned() });
    }
    let tokenizer = if with_tokenizer { &[TOKENIZER, TOKENIZER_CONFIG][..] } else { &[] };
    match [CONFIG, MODEL].iter().chain(tokenizer).find(|name| exists(name)) {
        Some(name) if !overwrite => Err(CheckpointError::Exists { path: folder.join(name) }),
        _ => Ok(()),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(CheckpointError::io("write", path))
}

fn write_model(
    path: &Path,
    shape: &ModelShape,
    elements: &mut dyn FnMut(&str) -> Result<Vec<f32>>,
) -> Result<()> {
    let parameters = with_biases(shape);
    let wrong = |why| CheckpointError::File { path: path.to_owned(), why };
    let header = lay_out(shape, &parameters).map_err(wrong)?;
    let file = File::create(path).map_err(CheckpointError::io("write", path))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let failed = || CheckpointError::io("write", path);
    file.write_all(&header).map_err(failed())?;
    for (parameter, ours) in &parameters {
        let mut all = if *ours { elements(&parameter.name)? } else { vec![0.0; parameter.len()] };
        if all.len() != parameter.len() {
            let why = format!("has {} elements for shape {:?}", all.len(), parameter.shape);
            return Err(CheckpointError::damaged_tensor(path, &parameter.name, why));
        }
        if names::source(shape, parameter).transposed
            && let [rows, columns] = parameter.shape[..]
        {
            all = transpose(&all, rows, columns);
        }
        for element in all {
            file.write_all(&element.to_le_bytes()).map_err(failed())?;
        }
    }
    file.flush().map_err(failed())?;
    file.get_ref().sync_all().map_err(failed())?;
    Ok(())
}

/// The parameters to write, and whether the model has them: GPT-2 in transformers always has biases, so
/// missing ones are zero.
fn with_biases(shape: &ModelShape) -> Vec<(ParamSpec, bool)> {
    let list = |shape: &ModelShape| shape.blocks().into_iter().flat_map(|block| block.parameters);
    let biases = shape.bias || shape.family == Family::Gpt2;
    let whole = ModelShape { bias: biases, ..shape.clone() };
    list(&whole)
        .map(|parameter| {
            let ours = shape.bias || !parameter.name.ends_with(".bias");
            (parameter, ours)
        })
        .collect()
}

fn lay_out(shape: &ModelShape, parameters: &[(ParamSpec, bool)]) -> Result<Vec<u8>, String> {
    let mut infos = Vec::new();
    let mut end = 0;
    for (parameter, _) in parameters {
        let HfSource { tensors, .. } = names::source(shape, parameter);
        for tensor in tensors {
            let prefix = if tensor.name == names::HEAD { "" } else { names::prefix(shape.family) };
            let start = end;
            end += tensor.shape.iter().product::<usize>() * size_of::<f32>();
            let (dtype, shape, data_offsets) = (Dtype::F32, tensor.shape, (start, end));
            let name = format!("{prefix}{}", tensor.name);
            infos.push((name, TensorInfo { dtype, shape, data_offsets }));
        }
    }
    // transformers refuses files without it.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    header::write(Some(about), infos)
}

/// Transposes a row-major matrix.
pub(super) fn transpose(elements: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let column = |c: usize| (0..rows).map(move |r| elements[r * columns + c]);
    (0..columns).flat_map(column).collect()
}
