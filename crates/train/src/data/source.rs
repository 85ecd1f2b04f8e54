//! Data sources: the built-in dataset, a text file, or a folder of `regatta data prepare`.
//!
//! [`open`] runs on one rank of each node before the others, because it may write files.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use regatta_model::text::hex;
use sha2::{Digest, Sha256};

use super::builtin;
use super::error::{DataError, Result};
use super::prepare::{self as folder, PrepareOptions, TokenizerSource};
use super::text_chunks;
use super::token_file::TokenFile;
use super::tokenizer::Tokenizer;
use crate::regular_file;

/// Default fraction of a text for validation.
pub const VALIDATION: f64 = 0.1;
/// Larger texts are converted to token files; smaller ones are tokenized by every rank.
const IN_MEMORY: u64 = 64 << 20;
/// Maximum size of a text that is tokenized in memory: it may have grown since it was below [`IN_MEMORY`].
const MAX_TEXT_BYTES: u64 = 1 << 30;
/// Prefix of raw 16-bit token files.
const RAW_U16: &str = "raw-u16:";

/// The requested data.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSpec {
    /// `tinyshakespeare` (the built-in dataset), a text file, a folder of `regatta data prepare`, or `raw-u16:FOLDER` with
    /// `train.bin` and `val.bin` as nanoGPT writes them.
    pub data: String,
    /// Tokenizer file; None: character tokenizer.
    pub tokenizer: Option<PathBuf>,
    /// Whether the tokenizer must be the character tokenizer (`data.tokenizer=char`), also that of prepared
    /// data.
    pub require_char: bool,
    /// Fraction of a text for validation. Token files have their own split.
    pub validation: f64,
}

impl Default for DataSpec {
    fn default() -> Self {
        let (data, tokenizer, require_char) = (builtin::NAME.to_owned(), None, false);
        Self { data, tokenizer, require_char, validation: VALIDATION }
    }
}

/// Directories of datasets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataDirs {
    /// Extracted and prepared data.
    pub cache: Option<PathBuf>,
}

impl DataDirs {
    /// From the environment: `regatta/data` in `XDG_CACHE_HOME` or `~/.cache`.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // The XDG specification says to ignore relative paths.
        let cache = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = cache.or_else(|| Some(path("HOME")?.join(".cache")));
        Self { cache: cache.map(|path| path.join("regatta/data")) }
    }

    /// The cache directory.
    pub(super) fn cache(&self) -> Result<&Path> {
        self.cache.as_deref().ok_or_else(|| DataError::Io {
            doing: "find a cache directory for data",
            path: PathBuf::from("~/.cache"),
            source: std::io::Error::other("neither XDG_CACHE_HOME nor HOME is set"),
        })
    }
}

/// Opens the data. Converts a large text to token files first, so call it in one process per node, or one in
/// total if the cache is shared, before the others.
pub fn open(spec: &DataSpec, dirs: &DataDirs) -> Result<Dataset> {
    open_with(spec, dirs, IN_MEMORY)
}

fn open_with(spec: &DataSpec, dirs: &DataDirs, in_memory: u64) -> Result<Dataset> {
    check_val_fraction(spec.validation)?;
    if builtin::is_name(&spec.data) {
        return from_text(&builtin::text(), spec, "the built-in text");
    }
    if let Some(path) = spec.data.strip_prefix(RAW_U16) {
        return open_raw_u16(Path::new(path), spec.tokenizer.as_deref());
    }
    let path = PathBuf::from(&spec.data);
    let found = std::fs::metadata(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => DataError::UnknownSource { name: spec.data.clone() },
        _ => DataError::io("stat", &path)(error),
    })?;
    match found.len() {
        _ if found.is_dir() => {
            if spec.require_char {
                folder::require_characters(&path)?;
            }
            open_folder(&path, spec.tokenizer.as_deref())
        }
        _ if !found.is_file() => Err(DataError::NoFile { path }),
        bytes if bytes <= in_memory => {
            let bytes =
                regular_file::read(&path, MAX_TEXT_BYTES).map_err(DataError::io("read", &path))?;
            let text = String::from_utf8(bytes).map_err(|error| DataError::NotUtf8 {
                path: path.clone(),
                byte: error.utf8_error().valid_up_to() as u64,
            })?;
            from_text(&text, spec, &path.display().to_string())
        }
        _ => open_folder(&prepare_in_cache(path, spec, &found, dirs)?, spec.tokenizer.as_deref()),
    }
}

/// The file of an input of `regatta data prepare`; the built-in dataset is written to one.
pub fn file(data: &str, dirs: &DataDirs) -> Result<PathBuf> {
    if builtin::is_name(data) {
        return builtin::file(dirs);
    }
    let path = PathBuf::from(data);
    match path.try_exists().map_err(DataError::io("stat", &path))? {
        true => Ok(path),
        false => Err(DataError::UnknownInput { name: data.to_owned() }),
    }
}

/// Checks a validation fraction.
pub(super) fn check_val_fraction(fraction: f64) -> Result<()> {
    if (0.0..1.0).contains(&fraction) { Ok(()) } else { Err(DataError::ValFraction { fraction }) }
}

/// Converts a large text to token files, unless cached.
fn prepare_in_cache(
    path: PathBuf,
    spec: &DataSpec,
    found: &std::fs::Metadata,
    dirs: &DataDirs,
) -> Result<PathBuf> {
    let path = path.canonicalize().map_err(DataError::io("stat", &path))?;
    let (tokenizer, validation) = (spec.tokenizer.clone(), spec.validation);
    let fingerprint = tokenizer.as_deref().map(Tokenizer::load).transpose()?;
    let fingerprint = fingerprint.map(|tokenizer| tokenizer.fingerprint());
    let (bytes, time) = (found.len(), found.modified().ok());
    let cache_key = format!("{path:?} {bytes} {time:?} {fingerprint:?} {validation}");
    let name = &hex(&Sha256::digest(cache_key))[..16];
    let folder = dirs.cache()?.join("prepared").join(name);
    if folder.join(folder::METADATA).exists() {
        return Ok(folder);
    }
    let (inputs, tokenizer) = (vec![path], TokenizerSource::file_or_characters(tokenizer));
    let plan = PrepareOptions { inputs, tokenizer, validation, folder, replace: false };
    match folder::prepare(&plan, &mut |_| Ok(())) {
        // Another process was faster.
        Ok(_) | Err(DataError::Exists { .. }) => Ok(plan.folder),
        Err(error) => Err(error),
    }
}

/// An open dataset.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// Training split.
    pub train: Tokens,
    /// Validation split.
    pub validation: Tokens,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Digest of tokens and tokenizer.
    pub digest: String,
}

impl Dataset {
    /// From both splits and the tokenizer.
    pub fn new(train: Tokens, validation: Tokens, tokenizer: Tokenizer) -> Result<Self> {
        let mut sum = Sha256::new_with_prefix(tokenizer.fingerprint());
        for tokens in [&train, &validation] {
            sum.update(tokens.digest()?);
        }
        let mut digest = hex(&sum.finalize());
        digest.truncate(16);
        Ok(Self { train, validation, tokenizer, digest })
    }

    /// Verifies the checksums of token files.
    pub fn verify(&self) -> Result<()> {
        [&self.train, &self.validation].into_iter().try_for_each(|tokens| match tokens {
            Tokens::Memory(_) => Ok(()),
            Tokens::File(file) => file.verify(),
        })
    }
}

/// Opens raw 16-bit tokens.
fn open_raw_u16(path: &Path, tokenizer: Option<&Path>) -> Result<Dataset> {
    let missing = || DataError::NoTokenizer { path: path.to_owned() };
    let tokenizer = Tokenizer::load(tokenizer.ok_or_else(missing)?)?;
    let file = |name: &str| {
        let file = TokenFile::open_raw_u16(&path.join(name), tokenizer.vocab_size())?;
        Ok(Tokens::File(Arc::new(file)))
    };
    let (train, validation) = (file("train.bin")?, file("val.bin")?);
    Dataset::new(train, validation, tokenizer)
}

fn from_text(text: &str, spec: &DataSpec, what: &str) -> Result<Dataset> {
    if text.is_empty() {
        return Err(DataError::Empty { what: what.to_owned() });
    }
    let tokenizer = match &spec.tokenizer {
        Some(path) => Tokenizer::load(path)?,
        None => Tokenizer::from_characters(text.chars()),
    };
    let (train, validation) = text_chunks::cut(text, spec.validation);
    let tokens = |text: &str, before: &str| -> Result<Tokens> {
        let tokens = tokenizer.encode(text);
        Ok(Tokens::Memory(tokens.map_err(|error| error.in_data(before.chars().count()))?.into()))
    };
    let (train, validation) = (tokens(train, "")?, tokens(validation, train)?);
    Dataset::new(train, validation, tokenizer)
}

/// Opens a prepared folder, and checks that its tokens match its tokenizer and the requested one.
pub fn open_folder(path: &Path, wanted: Option<&Path>) -> Result<Dataset> {
    folder::metadata(path)?;
    let own = path.join(folder::TOKENIZER);
    let tokenizer = Tokenizer::load(&own)?;
    let file = |name: &str| {
        let file = TokenFile::open(&path.join(name))?;
        made_with(&file, &own, &tokenizer)?;
        if let Some(wanted) = wanted {
            made_with(&file, wanted, &Tokenizer::load(wanted)?)?;
        }
        Ok(Tokens::File(Arc::new(file)))
    };
    let (train, validation) = (file(folder::TRAIN)?, file(folder::VALIDATION)?);
    Dataset::new(train, validation, tokenizer)
}

fn made_with(file: &TokenFile, path: &Path, tokenizer: &Tokenizer) -> Result<()> {
    let of_tokenizer = tokenizer.fingerprint();
    match file.header().fingerprint.clone() {
        Some(of_file) if of_file != of_tokenizer => Err(DataError::OtherTokenizer {
            path: file.path().to_owned(),
            tokenizer: path.to_owned(),
            of_file,
            of_tokenizer,
        }),
        _ => Ok(()),
    }
}

/// Tokens in memory or in a file; cheap to clone.
#[derive(Debug, Clone)]
pub enum Tokens {
    /// In memory.
    Memory(Arc<[u32]>),
    /// In a file.
    File(Arc<TokenFile>),
}

impl Tokens {
    /// Number of tokens.
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(all) => all.len() as u64,
            Self::File(file) => file.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Digest of the tokens; that of a file is stored in it or sampled.
    fn digest(&self) -> Result<[u8; 32]> {
        match self {
            Self::File(file) => file.digest(),
            Self::Memory(all) => {
                let mut sum = Sha256::new();
                let mut bytes = Vec::new();
                for some in all.chunks(1 << 16) {
                    bytes.clear();
                    bytes.extend(some.iter().flat_map(|token| token.to_le_bytes()));
                    sum.update(&bytes);
                }
                Ok(sum.finalize().into())
            }
        }
    }

    /// Reads a range into `out`, replacing its contents.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u32>) -> Result<()> {
        let all = match self {
            Self::Memory(all) => all,
            Self::File(file) => return file.tokens(range, out),
        };
        let (Range { start, end }, tokens) = (range, self.len());
        let Some(part) = all.get(start as usize..end as usize) else {
            let what = "the text".to_owned();
            return Err(DataError::OutOfRange { what, start, end, tokens });
        };
        out.clear();
        out.extend_from_slice(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
