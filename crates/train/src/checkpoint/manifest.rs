//! What is written beside the numbers: `checkpoint.json`, and before it a description by each rank.
//! No I/O: text in, text out. Everything read here may be damaged or somebody else's.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::folder;
use super::piece::{Kind, Part, key, matrix};
use regatta_predict::shape::Shape;

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// The name among [`About::extra`] of how the ranks that wrote it were laid out.
pub const SPLIT: &str = "split";
/// Under this name [`About::extra`] tells which start of a training wrote it.
pub const RUN: &str = "run";
/// And under this one what tells the data from other data.
pub const DATA: &str = "data";

/// What a checkpoint is about: all that training needs beside the numbers to go on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Steps that are done.
    pub step: u64,
    /// Tokens that were trained on.
    pub tokens: u64,
    /// What all random numbers follow from.
    pub seed: u64,
    /// The model.
    pub shape: Shape,
    /// The training's configuration, as TOML.
    pub config: String,
    /// The tokenizer's fingerprint.
    pub tokenizer: String,
    /// Whatever else training wants to know again, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
}

/// `checkpoint.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format's version.
    pub version: u32,
    /// What it is about.
    pub about: About,
    /// How many ranks wrote it.
    pub ranks: usize,
    /// Files of numbers and how long they are.
    pub files: BTreeMap<String, u64>,
    /// The tensors.
    pub tensors: Vec<Tensor>,
}

/// A tensor and where its numbers are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Its name, such as `layer.3.qkv.weight`.
    pub name: String,
    /// What its numbers are.
    pub kind: Kind,
    /// Its whole shape.
    pub shape: Vec<usize>,
    /// Which parts of it are where; together they are all of it, and some may be there twice.
    pub pieces: Vec<Stored>,
}

/// Where a part of a tensor is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// In which file, under its [`key`].
    pub file: String,
    /// Which part of the tensor.
    pub part: Part,
    /// The SHA-256 of its bytes.
    pub sha256: String,
}

/// What a rank says about the file that it wrote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    /// The format's version.
    pub version: u32,
    /// Of which step.
    pub step: u64,
    /// Which rank.
    pub rank: usize,
    /// Of how many.
    pub ranks: usize,
    /// The length of its file; 0 if it had nothing to write.
    pub bytes: u64,
    /// What is in it.
    pub pieces: Vec<Written>,
}

/// A piece that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// The tensor's name.
    pub name: String,
    /// What its numbers are.
    pub kind: Kind,
    /// The tensor's whole shape.
    pub shape: Vec<usize>,
    /// Which part of it.
    pub part: Part,
    /// The SHA-256 of its bytes.
    pub sha256: String,
}

/// In how many pieces tensors are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pieces {
    /// Tensors that are in one piece.
    pub whole: usize,
    /// Pieces that are numbers from a place to another.
    pub ranges: usize,
    /// Pieces that are some columns of some rows.
    pub rectangles: usize,
}

impl Manifest {
    /// How its tensors are split.
    pub fn pieces(&self) -> Pieces {
        let mut count = Pieces::default();
        for piece in self.tensors.iter().flat_map(|tensor| &tensor.pieces) {
            match piece.part {
                Part::Whole => count.whole += 1,
                Part::Flat(_) => count.ranges += 1,
                Part::Rectangle { .. } => count.rectangles += 1,
            }
        }
        count
    }
}

impl Tensor {
    /// Its name and kind as files have it.
    pub fn title(&self) -> String {
        key(self.kind, &self.name, &Part::Whole)
    }
}

impl Sidecar {
    /// As it is written to a file.
    pub fn to_text(&self) -> String {
        to_text(self)
    }

    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let sidecar: Self = versioned(text)?;
        for piece in &sidecar.pieces {
            let title = key(piece.kind, &piece.name, &piece.part);
            check_piece(&title, &piece.shape, &piece.part, &piece.sha256)?;
        }
        Ok(sidecar)
    }
}

impl Manifest {
    /// As it is written to a file.
    pub fn to_text(&self) -> String {
        to_text(self)
    }

    /// Puts together what the ranks wrote, in the order of ranks. All of a rank's words are checked.
    pub fn gather(about: About, sidecars: Vec<Sidecar>) -> Result<Self, String> {
        let ranks = sidecars.len();
        let mut files = BTreeMap::new();
        let mut tensors: BTreeMap<(Kind, String), Tensor> = BTreeMap::new();
        for (rank, sidecar) in sidecars.into_iter().enumerate() {
            let file = folder::shard(rank);
            if sidecar.bytes > 0 {
                files.insert(file.clone(), sidecar.bytes);
            }
            for Written { name, kind, shape, part, sha256 } in sidecar.pieces {
                let place = tensors.entry((kind, name.clone()));
                let empty = || Tensor { name, kind, shape: shape.clone(), pieces: Vec::new() };
                let tensor = place.or_insert_with(empty);
                if tensor.shape != shape {
                    let (title, known) = (tensor.title(), &tensor.shape);
                    return Err(format!(
                        "rank {rank} has {title} of shape {shape:?}, ranks before it {known:?}"
                    ));
                }
                tensor.pieces.push(Stored { file: file.clone(), part, sha256 });
            }
        }
        let tensors = tensors.into_values().collect();
        Ok(Self { version: VERSION, about, ranks, files, tensors })
    }

    /// Reads one, and checks that it can be believed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let manifest: Self = versioned(text)?;
        manifest.about.shape.check()?;
        for name in manifest.files.keys() {
            let known = folder::rank_of_shard(name).is_some_and(|rank| rank < manifest.ranks);
            if !known {
                return Err(format!("{name:?} is no file of one of its {} ranks", manifest.ranks));
            }
        }
        let mut titles = BTreeSet::new();
        for tensor in &manifest.tensors {
            let title = tensor.title();
            for piece in &tensor.pieces {
                check_piece(&title, &tensor.shape, &piece.part, &piece.sha256)?;
                if !manifest.files.contains_key(&piece.file) {
                    return Err(format!("{title} is in {:?}, which is not listed", piece.file));
                }
            }
            // Without pieces it would not have been looked at.
            matrix(&tensor.shape).ok_or_else(|| format!("{title} has an impossible shape"))?;
            if !titles.insert(title) {
                return Err(format!("{} is described twice", tensor.title()));
            }
        }
        Ok(manifest)
    }
}

fn to_text<T: Serialize>(document: &T) -> String {
    // These types have nothing that JSON cannot say: no maps but by name, no errors of their own.
    let mut text = serde_json::to_string_pretty(document).unwrap_or_default();
    text.push('\n');
    text
}

/// Looks at the version first: what another one has would only be nonsense here.
fn versioned<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Any {
        version: u32,
    }
    let Any { version } =
        serde_json::from_str(text).map_err(|error| format!("is no checkpoint's: {error}"))?;
    if version != VERSION {
        let age = if version > VERSION { "a newer" } else { "an older" };
        return Err(format!(
            "is of version {version} of the format and this program reads {VERSION}: use {age} \
             regatta"
        ));
    }
    serde_json::from_str(text).map_err(|error| format!("is not as it was written: {error}"))
}

fn check_piece(title: &str, shape: &[usize], part: &Part, sha256: &str) -> Result<(), String> {
    part.check(shape).map_err(|why| format!("{title} {why}"))?;
    if sha256.len() == 64 && sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        Ok(())
    } else {
        Err(format!("{title} has no SHA-256 but {sha256:?}"))
    }
}
