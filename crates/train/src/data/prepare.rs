//! `regatta data prepare`: writes a folder of token files from texts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use regatta_model::document::{self, Document};
use serde::{Deserialize, Serialize};

use super::bpe::train::WordCounts;
use super::error::{DataError, Result};
use super::source::check_val_fraction;
use super::text_chunks::{self, Split};
use super::token_file::{self, TokenWriter};
use super::tokenizer::{CHARACTERS, Tokenizer};
use super::{beside, sha256};
use crate::regular_file;

/// Tokens of the training split.
pub const TRAIN: &str = "train.tokens";
/// Tokens of the validation split.
pub const VALIDATION: &str = "validation.tokens";
/// The tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// Metadata of the folder.
pub const METADATA: &str = "prepared.json";

/// Maximum size of the metadata, which lists the input files.
const MAX_METADATA_BYTES: u64 = 256 << 20;

/// What to prepare.
#[derive(Debug, Clone, PartialEq)]
pub struct PrepareOptions {
    /// Text files, concatenated.
    pub inputs: Vec<PathBuf>,
    /// The tokenizer.
    pub tokenizer: TokenizerSource,
    /// Fraction of the text for validation.
    pub validation: f64,
    /// Output folder.
    pub folder: PathBuf,
    /// Whether to replace an existing folder.
    pub replace: bool,
}

/// Where the tokenizer comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerSource {
    /// The characters of the texts.
    Characters,
    /// A file.
    File(PathBuf),
    /// Byte-level BPE, trained on the training split.
    TrainBpe {
        /// Tokens, of which 257 are the bytes and `<|endoftext|>`.
        vocab_size: usize,
    },
}

impl TokenizerSource {
    /// A file, or characters without one.
    pub fn file_or_characters(file: Option<PathBuf>) -> Self {
        file.map_or(Self::Characters, Self::File)
    }
}

/// Metadata of a prepared folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PreparedMeta {
    /// The texts, in order.
    pub inputs: Vec<Input>,
    /// Fraction of the text for validation.
    pub validation: f64,
    /// Tokens of the training split.
    pub train_tokens: u64,
    /// Tokens of the validation split.
    pub validation_tokens: u64,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// `characters` or `BPE`.
    pub tokenizer: String,
    /// Fingerprint of the tokenizer.
    pub fingerprint: String,
}

/// A text that was prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// File name.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256.
    pub sha256: String,
}

impl Document for PreparedMeta {
    const KIND: &'static str = "prepared";
    const VERSION: u32 = 1;
}

/// Progress of the preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The current phase.
    pub doing: &'static str,
    /// Bytes of text processed, or merges trained.
    pub done: u64,
    /// Bytes or merges in total.
    pub of: u64,
    /// What is counted.
    pub unit: ProgressUnit,
}

/// Unit of [`Progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes of text.
    Bytes,
    /// Merges of a BPE tokenizer.
    Merges,
}

impl Progress {
    fn bytes(doing: &'static str, done: u64, of: u64) -> Self {
        Self { doing, done, of, unit: ProgressUnit::Bytes }
    }
}

/// Receives progress; may abort by [`DataError::Interrupted`].
pub type OnProgress<'a> = dyn FnMut(Progress) -> Result<()> + 'a;

/// Writes the folder under a temporary name and renames it when complete. An aborted preparation leaves nothing.
pub fn prepare(options: &PrepareOptions, progress: &mut OnProgress<'_>) -> Result<PreparedMeta> {
    check_val_fraction(options.validation)?;
    let folder = follow_links(&options.folder)?;
    check_replaceable(&folder, options.replace)?;
    let total = options.inputs.iter().map(|path| text_bytes(path)).sum::<Result<u64>>()?;
    let inputs = checksums(&options.inputs, total, progress)?;
    let tokenizer = match &options.tokenizer {
        TokenizerSource::File(path) => Tokenizer::load(path)?,
        TokenizerSource::Characters => characters(&options.inputs, total, progress)?,
        TokenizerSource::TrainBpe { vocab_size } => {
            train_bpe(options, total, *vocab_size, progress)?
        }
    };
    let temp = TempFolder::next_to(&folder)?;
    let at = |name: &str| temp.path.join(name);
    tokenizer.save(&at(TOKENIZER))?;
    let (train_tokens, validation_tokens) =
        write_tokens(options, &tokenizer, &temp.path, total, progress)?;
    if train_tokens == 0 {
        return Err(DataError::Short { bytes: total });
    }
    let meta = PreparedMeta {
        inputs,
        validation: options.validation,
        train_tokens,
        validation_tokens,
        vocabulary: tokenizer.vocab_size(),
        tokenizer: tokenizer.kind().to_owned(),
        fingerprint: tokenizer.fingerprint(),
    };
    let json = document::to_json(&meta).map_err(std::io::Error::other);
    let written = json.and_then(|json| std::fs::write(at(METADATA), json));
    written.map_err(DataError::io("write", &at(METADATA)))?;
    temp.rename_to(&folder, options.replace)?;
    Ok(meta)
}

/// Reads the metadata of a folder.
pub fn metadata(folder: &Path) -> Result<PreparedMeta> {
    let fault = |reason: String| DataError::Folder { path: folder.to_owned(), reason };
    let text = regular_file::read_to_string(&folder.join(METADATA), MAX_METADATA_BYTES)
        .map_err(|error| fault(format!("{METADATA}: {error}")))?;
    document::from_json(&text).map_err(|error| fault(format!("{METADATA}: {error}")))
}

/// Fails if a folder was prepared with another tokenizer than the character tokenizer.
pub(super) fn require_characters(folder: &Path) -> Result<()> {
    let PreparedMeta { tokenizer, vocabulary, .. } = metadata(folder)?;
    match tokenizer.as_str() {
        CHARACTERS => Ok(()),
        _ => Err(DataError::NotCharacters { path: folder.to_owned(), tokenizer, vocabulary }),
    }
}

/// The folder of a path: symbolic links are followed.
fn follow_links(folder: &Path) -> Result<PathBuf> {
    // Components, because a link with a trailing slash counts as a folder.
    let folder: PathBuf = folder.components().collect();
    match folder.is_symlink() {
        true => folder.canonicalize().map_err(DataError::io("follow the link", &folder)),
        false => Ok(folder),
    }
}

/// Size of a text. It is read more than once, so it must be a regular file.
fn text_bytes(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path).map_err(DataError::io("stat", path))?;
    match found.len() {
        _ if !found.is_file() => Err(DataError::NoFile { path: path.to_owned() }),
        0 => Err(DataError::Empty { what: path.display().to_string() }),
        bytes => Ok(bytes),
    }
}

fn checksums(paths: &[PathBuf], of: u64, progress: &mut OnProgress<'_>) -> Result<Vec<Input>> {
    let mut done = 0;
    let checksum = |path: &PathBuf| {
        let before = done;
        let sha256 = sha256(path, |bytes| {
            done += bytes;
            progress(Progress::bytes("computing checksums", done, of))
        })?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Input { name, bytes: done - before, sha256 })
    };
    paths.iter().map(checksum).collect()
}

fn characters(inputs: &[PathBuf], of: u64, progress: &mut OnProgress<'_>) -> Result<Tokenizer> {
    let (mut found, mut done) = (BTreeSet::new(), 0);
    text_chunks::for_each_chunk(inputs, of, |_, text| {
        found.extend(text.chars());
        done += text.len() as u64;
        progress(Progress::bytes("collecting characters", done, of))
    })?;
    Ok(Tokenizer::from_characters(found))
}

/// Trains a tokenizer on the training split, so that validation measures text that it has not seen, either.
fn train_bpe(
    options: &PrepareOptions,
    total: u64,
    vocab_size: usize,
    progress: &mut OnProgress<'_>,
) -> Result<Tokenizer> {
    let (mut words, mut done) = (WordCounts::default(), 0);
    let of = text_chunks::train_bytes(total, options.validation);
    text_chunks::for_each_chunk(&options.inputs, of, |part, text| {
        if part == Split::Train {
            words.add(text);
            done += text.len() as u64;
        }
        progress(Progress::bytes("counting words", done, of))
    })?;
    let file = words.train(vocab_size, &mut |done, of| {
        let (done, of) = (done as u64, of as u64);
        progress(Progress { doing: "training BPE", done, of, unit: ProgressUnit::Merges })
    })?;
    Tokenizer::from_bytes(&file, Path::new(TOKENIZER))
}

/// Writes both token files; returns their numbers of tokens.
fn write_tokens(
    options: &PrepareOptions,
    tokenizer: &Tokenizer,
    folder: &Path,
    of: u64,
    progress: &mut OnProgress<'_>,
) -> Result<(u64, u64)> {
    let writer = |name: &str| {
        TokenWriter::create(&folder.join(name), tokenizer.vocab_size(), &tokenizer.fingerprint())
    };
    let (mut train, mut validation) = (writer(TRAIN)?, writer(VALIDATION)?);
    let (mut done, mut characters) = (0, 0);
    let split = text_chunks::train_bytes(of, options.validation);
    text_chunks::for_each_chunk(&options.inputs, split, |part, text| {
        let tokens = tokenizer.encode(text).map_err(|error| error.in_data(characters))?;
        match part {
            Split::Train => train.push(&tokens)?,
            Split::Validation => validation.push(&tokens)?,
        }
        characters += text.chars().count();
        done += text.len() as u64;
        progress(Progress::bytes("writing tokens", done, of))
    })?;
    Ok((train.finish()?.tokens, validation.finish()?.tokens))
}

/// Fails if the folder exists, unless it is a prepared one that may be replaced.
fn check_replaceable(folder: &Path, replace: bool) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(DataError::io("create", folder)(error)),
        Ok(entries) => entries,
    };
    let mut is_empty = true;
    for entry in entries {
        is_empty = false;
        let name = entry.map_err(DataError::io("read", folder))?.file_name();
        let ours = [TRAIN, VALIDATION, TOKENIZER, METADATA].iter().any(|file| name == *file);
        if replace && !ours {
            let reason = format!("it contains {name:?} and is not replaced");
            return Err(DataError::Folder { path: folder.to_owned(), reason });
        }
    }
    match is_empty || replace {
        true => Ok(()),
        false => Err(DataError::Exists { path: folder.to_owned() }),
    }
}

/// A temporary folder, removed unless renamed.
struct TempFolder {
    path: PathBuf,
}

impl TempFolder {
    fn next_to(folder: &Path) -> Result<Self> {
        if let Some(parent) = folder.parent() {
            std::fs::create_dir_all(parent).map_err(DataError::io("create", parent))?;
        }
        let path = beside(folder, "part");
        std::fs::create_dir(&path).map_err(DataError::io("create", folder))?;
        Ok(Self { path })
    }

    /// Renames it. An existing folder is moved away first, and removed afterwards.
    fn rename_to(self, folder: &Path, replace: bool) -> Result<()> {
        let old = beside(folder, "old");
        let exists = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if exists {
            check_replaceable(folder, replace)?;
            std::fs::rename(folder, &old).map_err(DataError::io("replace", folder))?;
        }
        std::fs::rename(&self.path, folder).map_err(DataError::io("rename to", folder))?;
        token_file::sync_parent_dir(folder)?;
        match exists {
            true => std::fs::remove_dir_all(&old).map_err(DataError::io("remove", &old)),
            false => Ok(()),
        }
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // Already renamed on success.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests;
