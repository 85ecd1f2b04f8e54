//! Imports Hugging Face models, one tensor at a time to save memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;
use serde::Deserialize;

use super::super::header::{self, TensorLocation};
use super::names::{self, HfTensor};
use super::{config, export};
use crate::checkpoint::{CheckpointError, Result};
use crate::regular_file;
use regatta_predict::shape::{ModelShape, ParamSpec};

/// Maximum size of `config.json`.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Maximum size of the index of sharded weights.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// An opened model.
#[derive(Debug)]
pub struct Imported {
    /// The model shape.
    pub shape: ModelShape,
    folder: PathBuf,
    prefix: &'static str,
    files: Vec<(PathBuf, File)>,
    /// File and location of each tensor, by name.
    tensors: HashMap<String, (usize, TensorLocation)>,
}

/// Opens the model in a folder, and checks that exactly the expected tensors are there.
pub fn import(folder: &Path) -> Result<Imported> {
    let path = folder.join("config.json");
    let text = regular_file::read_to_string(&path, MAX_CONFIG_BYTES);
    let text = text.map_err(CheckpointError::io("read", &path))?;
    let shape = config::parse(&text).map_err(|why| CheckpointError::File { path, why })?;
    let (mut files, mut tensors) = (Vec::new(), HashMap::new());
    for path in model_files(folder)? {
        let file = regular_file::open(&path).map_err(CheckpointError::io("open", &path))?;
        let length = file.metadata().map_err(CheckpointError::io("stat", &path))?.len();
        let locations = header::read(&file, length)
            .map_err(|why| CheckpointError::File { path: path.clone(), why })?;
        let index = files.len();
        tensors.extend(locations.into_iter().map(|(name, at)| (name, (index, at))));
        files.push((path, file));
    }
    let prefix = names::prefix(shape.family);
    let with = format!("{prefix}{}", names::embedding(shape.family));
    let prefix = if tensors.contains_key(&with) { prefix } else { "" };
    let imported = Imported { shape, folder: folder.to_owned(), prefix, files, tensors };
    imported.check()?;
    Ok(imported)
}

/// The weights file, or those listed in the index.
fn model_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let single = folder.join(export::MODEL);
    if single.exists() {
        return Ok(vec![single]);
    }
    let path = folder.join("model.safetensors.index.json");
    let text = match regular_file::read_to_string(&path, MAX_INDEX_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(CheckpointError::NoModel { folder: folder.to_owned() });
        }
        text => text.map_err(CheckpointError::io("read", &path))?,
    };
    let files = parse_index(&text).map_err(|why| CheckpointError::File { path, why })?;
    Ok(files.into_iter().map(|name| folder.join(name)).collect())
}

/// The files listed in an index.
pub fn parse_index(text: &str) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } = serde_json::from_str(text)
        .map_err(|error| format!("is not a safetensors index: {error}"))?;
    let mut files: Vec<String> = weight_map.into_values().collect();
    files.sort();
    files.dedup();
    // Paths outside of the folder are refused.
    let is_outside = |name: &&String| name.contains(['/', '\0']) || !name.ends_with(".safetensors");
    match files.iter().find(is_outside) {
        Some(name) => Err(format!("names {name:?}, which is not a safetensors file in the folder")),
        None => Ok(files),
    }
}

impl Imported {
    /// Our parameters, in forward order.
    pub fn parameters(&self) -> Vec<ParamSpec> {
        self.shape.blocks().into_iter().flat_map(|block| block.parameters).collect()
    }

    /// Reads one of our parameters.
    pub fn read(&self, parameter: &ParamSpec) -> Result<Vec<f32>> {
        let source = names::source(&self.shape, parameter);
        let mut elements = Vec::with_capacity(parameter.len());
        for tensor in &source.tensors {
            let (name, index, location) = self.find(tensor)?;
            let (path, file) = &self.files[index];
            read_elements(path, file, &name, location, &mut elements)?;
        }
        if source.transposed
            && let [rows, columns] = parameter.shape[..]
        {
            elements = export::transpose(&elements, columns, rows);
        }
        Ok(elements)
    }

    fn find(&self, tensor: &HfTensor) -> Result<(String, usize, &TensorLocation)> {
        let prefix = if tensor.name == names::HEAD { "" } else { self.prefix };
        let name = format!("{prefix}{}", tensor.name);
        let wrong = CheckpointError::damaged_tensor;
        let Some((index, location)) = self.tensors.get(&name) else {
            return Err(wrong(&self.folder, &name, "is missing".to_owned()));
        };
        let path = &self.files[*index].0;
        if location.shape != tensor.shape {
            let (is, should) = (&location.shape, &tensor.shape);
            let why = format!("has shape {is:?}, but config.json implies {should:?}");
            return Err(wrong(path, &name, why));
        }
        if !matches!(location.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            let why =
                format!("has type {:?}; only F32, F16 and BF16 are supported", location.dtype);
            return Err(wrong(path, &name, why));
        }
        Ok((name, *index, location))
    }

    /// Checks that all tensors are present, and no others.
    fn check(&self) -> Result<()> {
        let mut used = HashSet::new();
        for parameter in self.parameters() {
            for tensor in &names::source(&self.shape, &parameter).tensors {
                used.insert(self.find(tensor)?.0);
            }
        }
        if self.shape.tie_embeddings {
            // Tied to the embedding.
            used.insert(names::HEAD.to_owned());
        }
        let mut others: Vec<&String> = self.tensors.keys().collect();
        others.retain(|name| !used.contains(*name) && !names::is_constant(name));
        others.sort();
        let Some(name) = others.first() else { return Ok(()) };
        let why = format!("is unexpected in a {:?} model", self.shape.family);
        Err(CheckpointError::damaged_tensor(&self.folder, name, why))
    }
}

/// Bytes read at a time: a multiple of every element size.
const CHUNK_BYTES: u64 = 1 << 20;

fn read_elements(
    path: &Path,
    file: &File,
    name: &str,
    location: &TensorLocation,
    elements: &mut Vec<f32>,
) -> Result<()> {
    let before = elements.len();
    let (mut at, end) = (location.bytes.start, location.bytes.end);
    let mut bytes = Vec::new();
    while at < end {
        bytes.resize(CHUNK_BYTES.min(end - at) as usize, 0);
        file.read_exact_at(&mut bytes, at).map_err(CheckpointError::io("read", path))?;
        at += bytes.len() as u64;
        let pairs = bytes.as_chunks::<2>().0;
        match location.dtype {
            Dtype::F16 => elements.extend(pairs.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
            Dtype::BF16 => elements.extend(pairs.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
            _ => elements.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
        }
    }
    if elements[before..].iter().all(|number| number.is_finite()) {
        return Ok(());
    }
    Err(CheckpointError::damaged_tensor(path, name, "contains NaN or infinity".to_owned()))
}
