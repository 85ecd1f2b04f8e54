//! Makes a folder of token files from texts: what `regatta data prepare` does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use regatta_model::document::{self, Document};
use serde::{Deserialize, Serialize};

use super::error::{DataError, Result};
use super::pieces::{self, Part};
use super::source::check_share;
use super::token_file::{self, TokenWriter};
use super::tokenizer::Tokenizer;
use super::{beside, fetch};

/// The tokens to learn from.
pub const TRAIN: &str = "train.tokens";
/// The tokens to see what was learned.
pub const VALIDATION: &str = "validation.tokens";
/// What the tokens mean.
pub const TOKENIZER: &str = "tokenizer.json";
/// What the folder was made of.
pub const ABOUT: &str = "prepared.json";

/// What to make of what.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Text files, which are one text together.
    pub inputs: Vec<PathBuf>,
    /// A tokenizer file; without one the tokens are the texts' characters.
    pub tokenizer: Option<PathBuf>,
    /// The share at the end that is for validation.
    pub validation: f64,
    /// The folder to make.
    pub folder: PathBuf,
    /// Whether one that is there is replaced.
    pub replace: bool,
}

/// What a folder holds and was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The texts, in order.
    pub inputs: Vec<Input>,
    /// The share at the end that is for validation.
    pub validation: f64,
    /// Tokens to learn from.
    pub train_tokens: u64,
    /// Tokens to see what was learned.
    pub validation_tokens: u64,
    /// Each token is below that.
    pub vocabulary: usize,
    /// What the tokens are: `characters` or `BPE`.
    pub tokenizer: String,
    /// What tells the tokenizer from others.
    pub fingerprint: String,
}

/// A text that went into a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The file's name.
    pub name: String,
    /// How long it is.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: String,
}

impl Document for About {
    const KIND: &'static str = "prepared";
    const VERSION: u32 = 1;
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub doing: &'static str,
    /// Bytes of text it is done with.
    pub done: u64,
    /// Bytes of text there are.
    pub of: u64,
}

/// Hears how far it is; may end it by [`DataError::Interrupted`].
pub type Hear<'a> = dyn FnMut(Progress) -> Result<()> + 'a;

/// Makes the folder: beside its place at first, and there only when it is whole. What is ended before
/// leaves nothing.
pub fn prepare(plan: &Plan, progress: &mut Hear<'_>) -> Result<About> {
    check_share(plan.validation)?;
    let folder = behind_links(&plan.folder)?;
    may_make(&folder, plan.replace)?;
    let total = plan.inputs.iter().map(|path| text_bytes(path)).sum::<Result<u64>>()?;
    let inputs = look_at(&plan.inputs, total, progress)?;
    let tokenizer = match &plan.tokenizer {
        Some(path) => Tokenizer::load(path)?,
        None => characters(&plan.inputs, total, progress)?,
    };
    let part = NewFolder::beside(&folder)?;
    let at = |name: &str| part.path.join(name);
    tokenizer.save(&at(TOKENIZER))?;
    let (train_tokens, validation_tokens) =
        tokenise(plan, &tokenizer, &part.path, total, progress)?;
    if train_tokens == 0 {
        return Err(DataError::Short { bytes: total });
    }
    let about = About {
        inputs,
        validation: plan.validation,
        train_tokens,
        validation_tokens,
        vocabulary: tokenizer.vocabulary(),
        tokenizer: tokenizer.kind().to_owned(),
        fingerprint: tokenizer.fingerprint(),
    };
    let json = document::to_json(&about).map_err(std::io::Error::other);
    let written = json.and_then(|json| std::fs::write(at(ABOUT), json));
    written.map_err(DataError::io("write", &at(ABOUT)))?;
    part.take_place_of(&folder, plan.replace)?;
    Ok(about)
}

/// What a folder says of itself.
pub fn about(folder: &Path) -> Result<About> {
    let fault = |reason: String| DataError::Folder { path: folder.to_owned(), reason };
    let text = std::fs::read_to_string(folder.join(ABOUT))
        .map_err(|error| fault(format!("{ABOUT}: {error}")))?;
    document::from_json(&text).map_err(|error| fault(format!("{ABOUT}: {error}")))
}

/// The folder that a name means: a link stays a link to the folder behind it.
fn behind_links(folder: &Path) -> Result<PathBuf> {
    // Components, for a link with a slash behind it counts as the folder already.
    let folder: PathBuf = folder.components().collect();
    match folder.is_symlink() {
        true => folder.canonicalize().map_err(DataError::io("follow the link", &folder)),
        false => Ok(folder),
    }
}

/// How long a text is. It is read more than once, so it must be a file.
fn text_bytes(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path).map_err(DataError::io("look at", path))?;
    match found.len() {
        _ if !found.is_file() => Err(DataError::NoFile { path: path.to_owned() }),
        0 => Err(DataError::Empty { what: path.display().to_string() }),
        bytes => Ok(bytes),
    }
}

fn look_at(paths: &[PathBuf], of: u64, progress: &mut Hear<'_>) -> Result<Vec<Input>> {
    let mut done = 0;
    let look = |path: &PathBuf| {
        let before = done;
        let sha256 = fetch::sha256(path, |bytes| {
            done += bytes;
            progress(Progress { doing: "taking its checksum", done, of })
        })?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Input { name, bytes: done - before, sha256 })
    };
    paths.iter().map(look).collect()
}

fn characters(inputs: &[PathBuf], of: u64, progress: &mut Hear<'_>) -> Result<Tokenizer> {
    let (mut found, mut done) = (BTreeSet::new(), 0);
    pieces::each(inputs, of, |_, text| {
        found.extend(text.chars());
        done += text.len() as u64;
        progress(Progress { doing: "looking for characters", done, of })
    })?;
    Ok(Tokenizer::of_characters(found))
}

/// Writes both token files; returns how many tokens they have.
fn tokenise(
    plan: &Plan,
    tokenizer: &Tokenizer,
    folder: &Path,
    of: u64,
    progress: &mut Hear<'_>,
) -> Result<(u64, u64)> {
    let writer = |name: &str| {
        TokenWriter::create(&folder.join(name), tokenizer.vocabulary(), &tokenizer.fingerprint())
    };
    let (mut train, mut validation) = (writer(TRAIN)?, writer(VALIDATION)?);
    let (mut done, mut characters) = (0, 0);
    let split = pieces::train_bytes(of, plan.validation);
    pieces::each(&plan.inputs, split, |part, text| {
        let tokens = tokenizer.encode(text).map_err(|error| error.behind(characters))?;
        match part {
            Part::Train => train.push(&tokens)?,
            Part::Validation => validation.push(&tokens)?,
        }
        characters += text.chars().count();
        done += text.len() as u64;
        progress(Progress { doing: "writing tokens", done, of })
    })?;
    Ok((train.finish()?.tokens, validation.finish()?.tokens))
}

/// Whether a folder may be made here: where nothing is, or where one of ours is to be replaced.
fn may_make(folder: &Path, replace: bool) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(DataError::io("make the folder", folder)(error)),
        Ok(entries) => entries,
    };
    let mut is_empty = true;
    for entry in entries {
        is_empty = false;
        let name = entry.map_err(DataError::io("read", folder))?.file_name();
        let ours = [TRAIN, VALIDATION, TOKENIZER, ABOUT].iter().any(|file| name == *file);
        if replace && !ours {
            let reason = format!("it holds {name:?}, so it is not replaced");
            return Err(DataError::Folder { path: folder.to_owned(), reason });
        }
    }
    match is_empty || replace {
        true => Ok(()),
        false => Err(DataError::Exists { path: folder.to_owned() }),
    }
}

/// A folder that goes away unless it takes its place.
struct NewFolder {
    path: PathBuf,
}

impl NewFolder {
    fn beside(folder: &Path) -> Result<Self> {
        if let Some(parent) = folder.parent() {
            std::fs::create_dir_all(parent).map_err(DataError::io("make", parent))?;
        }
        let path = beside(folder, "part");
        std::fs::create_dir(&path).map_err(DataError::io("make", &path))?;
        Ok(Self { path })
    }

    /// Gives it its name. An old one steps aside first, and goes away when the new one is there.
    fn take_place_of(self, folder: &Path, replace: bool) -> Result<()> {
        let old = beside(folder, "old");
        let is_there = std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if is_there {
            may_make(folder, replace)?;
            std::fs::rename(folder, &old).map_err(DataError::io("replace", folder))?;
        }
        std::fs::rename(&self.path, folder).map_err(DataError::io("name", folder))?;
        token_file::sync_folder_of(folder)?;
        match is_there {
            true => std::fs::remove_dir_all(&old).map_err(DataError::io("remove", &old)),
            false => Ok(()),
        }
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        // It has another name already if it took its place.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests;
