//! Reading a model of Hugging Face, a tensor at a time: a large one is never in memory twice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype;
use serde::Deserialize;

use super::super::header::{self, Place};
use super::error::HuggingFaceError;
use super::names::{self, Theirs};
use super::{config, export};
use regatta_predict::shape::{Parameter, Shape};

/// A model that is there to be read.
#[derive(Debug)]
pub struct Imported {
    /// What model it is.
    pub shape: Shape,
    folder: PathBuf,
    prefix: &'static str,
    files: Vec<(PathBuf, File)>,
    /// The file of each tensor and where in it the tensor is, by their names.
    tensors: HashMap<String, (usize, Place)>,
}

/// Opens the model in a folder, and checks that all of our tensors are there, and no others.
pub fn import(folder: &Path) -> Result<Imported, HuggingFaceError> {
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(HuggingFaceError::io("read", &path))?;
    let shape = config::parse(&text).map_err(|why| HuggingFaceError::File { path, why })?;
    let (mut files, mut tensors) = (Vec::new(), HashMap::new());
    for path in model_files(folder)? {
        let file = File::open(&path).map_err(HuggingFaceError::io("open", &path))?;
        let length = file.metadata().map_err(HuggingFaceError::io("look at", &path))?.len();
        let places = header::read(&file, length)
            .map_err(|why| HuggingFaceError::File { path: path.clone(), why })?;
        let index = files.len();
        tensors.extend(places.into_iter().map(|(name, place)| (name, (index, place))));
        files.push((path, file));
    }
    let prefix = names::prefix(shape.family);
    let with = format!("{prefix}{}", names::embedding(shape.family));
    let prefix = if tensors.contains_key(&with) { prefix } else { "" };
    let imported = Imported { shape, folder: folder.to_owned(), prefix, files, tensors };
    imported.check()?;
    Ok(imported)
}

/// The files of a model: one, or those that an index names.
fn model_files(folder: &Path) -> Result<Vec<PathBuf>, HuggingFaceError> {
    let single = folder.join(export::MODEL);
    if single.exists() {
        return Ok(vec![single]);
    }
    let path = folder.join("model.safetensors.index.json");
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(HuggingFaceError::NoModel { folder: folder.to_owned() });
        }
        text => text.map_err(HuggingFaceError::io("read", &path))?,
    };
    let files = parse_index(&text).map_err(|why| HuggingFaceError::File { path, why })?;
    Ok(files.into_iter().map(|name| folder.join(name)).collect())
}

/// The names of the files that an index speaks of, each once.
pub fn parse_index(text: &str) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } =
        serde_json::from_str(text).map_err(|error| format!("is no index: {error}"))?;
    let mut files: Vec<String> = weight_map.into_values().collect();
    files.sort();
    files.dedup();
    // Nothing outside of the folder is a part of the model.
    match files.iter().find(|name| name.contains(['/', '\0']) || !name.ends_with(".safetensors")) {
        Some(other) => Err(format!("names {other:?}, which is no safetensors file of the folder")),
        None => Ok(files),
    }
}

impl Imported {
    /// Our parameters, in the order of the forward pass.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.shape.blocks().into_iter().flat_map(|block| block.parameters).collect()
    }

    /// Reads one of our parameters.
    pub fn read(&self, parameter: &Parameter) -> Result<Vec<f32>, HuggingFaceError> {
        let source = names::source(&self.shape, parameter);
        let mut numbers = Vec::with_capacity(parameter.len());
        for theirs in &source.tensors {
            let (name, index, place) = self.find(theirs)?;
            let (path, file) = &self.files[index];
            read_numbers(path, file, &name, place, &mut numbers)?;
        }
        if source.transposed
            && let [rows, columns] = parameter.shape[..]
        {
            numbers = export::transpose(&numbers, columns, rows);
        }
        Ok(numbers)
    }

    /// The folder it is in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn their_name(&self, theirs: &Theirs) -> String {
        let prefix = if theirs.name == names::HEAD { "" } else { self.prefix };
        format!("{prefix}{}", theirs.name)
    }

    fn find(&self, theirs: &Theirs) -> Result<(String, usize, &Place), HuggingFaceError> {
        let name = self.their_name(theirs);
        let wrong = |path: &Path, name: String, why: String| {
            let path = path.to_owned();
            HuggingFaceError::Tensor { path, name, why }
        };
        let Some((index, place)) = self.tensors.get(&name) else {
            return Err(wrong(&self.folder, name, "is missing".to_owned()));
        };
        let path = &self.files[*index].0;
        if place.shape != theirs.shape {
            let (is, should) = (&place.shape, &theirs.shape);
            let why = format!("has shape {is:?} and by config.json should have {should:?}");
            return Err(wrong(path, name, why));
        }
        if !matches!(place.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            let why = format!("is of {:?}, and only F32, F16 and BF16 are read", place.dtype);
            return Err(wrong(path, name, why));
        }
        Ok((name, *index, place))
    }

    /// All is there, and nothing that would be forgotten.
    fn check(&self) -> Result<(), HuggingFaceError> {
        let mut used = HashSet::new();
        for parameter in self.parameters() {
            for theirs in &names::source(&self.shape, &parameter).tensors {
                used.insert(self.find(theirs)?.0);
            }
        }
        if self.shape.tied {
            // The same numbers as the embedding's.
            used.insert(names::HEAD.to_owned());
        }
        let mut others: Vec<&String> = self.tensors.keys().collect();
        others.retain(|name| !used.contains(*name) && !names::is_constant(name));
        others.sort();
        let Some(name) = others.first() else { return Ok(()) };
        let why = format!("has no place in a {:?} model of ours", self.shape.family);
        let (path, name) = (self.folder.clone(), (*name).clone());
        Err(HuggingFaceError::Tensor { path, name, why })
    }
}

/// Bytes that are read at a time: a multiple of every size of a number.
const AT_A_TIME: u64 = 1 << 20;

fn read_numbers(
    path: &Path,
    file: &File,
    name: &str,
    place: &Place,
    numbers: &mut Vec<f32>,
) -> Result<(), HuggingFaceError> {
    let before = numbers.len();
    let (mut at, end) = (place.bytes.start, place.bytes.end);
    let mut bytes = Vec::new();
    while at < end {
        bytes.resize(AT_A_TIME.min(end - at) as usize, 0);
        file.read_exact_at(&mut bytes, at).map_err(HuggingFaceError::io("read", path))?;
        at += bytes.len() as u64;
        let pairs = bytes.as_chunks::<2>().0;
        match place.dtype {
            Dtype::F16 => numbers.extend(pairs.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
            Dtype::BF16 => numbers.extend(pairs.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
            _ => numbers.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
        }
    }
    if numbers[before..].iter().all(|number| number.is_finite()) {
        return Ok(());
    }
    let (path, name) = (path.to_owned(), name.to_owned());
    let why = "has numbers that are infinite or none".to_owned();
    Err(HuggingFaceError::Tensor { path, name, why })
}
