//! Where data comes from: a name, a text file, or a folder of `regatta data prepare`.
//!
//! [`prepare`] does what only one process of a node should do (it may fetch, and writes files);
//! [`open`] is then cheap enough for each rank.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::{DataError, Result};
use super::pieces;
use super::prepare::{self as folder, Plan};
use super::token_file::TokenFile;
use super::tokenizer::{Tokenizer, hex};
use super::{builtin, fetch};

/// The share of a text that is for validation, unless it says otherwise.
pub const VALIDATION: f64 = 0.1;
/// Larger texts are made into token files; smaller ones every rank reads by itself.
const IN_MEMORY: u64 = 64 << 20;
/// The project's own text.
const BUILTIN: &str = "builtin";
/// How bare numbers are asked for.
const RAW_U16: &str = "raw-u16:";

/// What the user asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// `builtin`, a named set, a text file, a folder of `regatta data prepare`, or `raw-u16:FOLDER`
    /// with `train.bin` and `val.bin` as nanoGPT writes them.
    pub data: String,
    /// A tokenizer file; without one a text's tokens are its characters.
    pub tokenizer: Option<PathBuf>,
    /// The share at the end of a text that is for validation. Token files have theirs already.
    pub validation: f64,
}

impl Default for Spec {
    fn default() -> Self {
        Self { data: BUILTIN.to_owned(), tokenizer: None, validation: VALIDATION }
    }
}

/// Where files are looked for and kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The user's folder of sets.
    pub folder: Option<PathBuf>,
    /// What was fetched or prepared.
    pub cache: Option<PathBuf>,
}

impl Places {
    /// As the environment says: `REGATTA_DATA`, and `regatta/data` in `XDG_CACHE_HOME` or
    /// `~/.cache`.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // A relative one is to be ignored, says the standard.
        let cache = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = cache.or_else(|| Some(path("HOME")?.join(".cache")));
        Self { folder: path("REGATTA_DATA"), cache: cache.map(|path| path.join("regatta/data")) }
    }

    /// Where a set may be, in this order.
    pub(super) fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.folder.iter().chain(&self.cache)
    }

    /// Where something can be kept.
    pub(super) fn cache(&self) -> Result<&Path> {
        self.cache.as_deref().ok_or_else(|| DataError::Io {
            doing: "find a place to keep data in",
            path: PathBuf::from("~/.cache"),
            source: std::io::Error::other("neither XDG_CACHE_HOME nor HOME is set"),
        })
    }
}

/// Data that is on this machine, so that every rank can open it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Prepared {
    /// The project's own text.
    Builtin {
        /// A tokenizer file, if not characters.
        tokenizer: Option<PathBuf>,
        /// The share at the end that is for validation.
        validation: f64,
    },
    /// A text that fits into memory.
    Text {
        /// The file.
        path: PathBuf,
        /// A tokenizer file, if not characters.
        tokenizer: Option<PathBuf>,
        /// The share at the end that is for validation.
        validation: f64,
    },
    /// A folder of token files.
    Folder {
        /// The folder.
        path: PathBuf,
        /// A tokenizer file that must be the folder's, if one was asked for.
        tokenizer: Option<PathBuf>,
    },
    /// A folder of bare numbers.
    RawU16 {
        /// The folder.
        path: PathBuf,
        /// Their tokenizer.
        tokenizer: PathBuf,
    },
}

/// Brings data to this machine: fetches a named set, makes token files of a large text. Done by one
/// process a node, or where the cache is shared, by one at all.
pub fn prepare(spec: &Spec, places: &Places) -> Result<Prepared> {
    prepare_with(spec, places, &fetch::download, IN_MEMORY)
}

fn prepare_with(
    spec: &Spec,
    places: &Places,
    download: &fetch::Download,
    in_memory: u64,
) -> Result<Prepared> {
    let (tokenizer, validation) = (spec.tokenizer.clone(), spec.validation);
    check_share(validation)?;
    if spec.data == BUILTIN {
        return Ok(Prepared::Builtin { tokenizer, validation });
    }
    if let Some(path) = spec.data.strip_prefix(RAW_U16) {
        let path = PathBuf::from(path);
        let missing = || DataError::Folder {
            path: path.clone(),
            reason: "bare numbers need the tokenizer file that made them".to_owned(),
        };
        let tokenizer = tokenizer.ok_or_else(missing)?;
        return Ok(Prepared::RawU16 { path, tokenizer });
    }
    let path = file_with(&spec.data, places, download)?;
    let found = std::fs::metadata(&path).map_err(DataError::io("look at", &path))?;
    match found.len() {
        _ if found.is_dir() => Ok(Prepared::Folder { path, tokenizer }),
        bytes if bytes <= in_memory => Ok(Prepared::Text { path, tokenizer, validation }),
        _ => {
            let path = into_cache(path, spec, &found, places)?;
            Ok(Prepared::Folder { path, tokenizer })
        }
    }
}

/// The file or folder that a name or a path stands for; a named set is fetched if need be.
pub fn file(data: &str, places: &Places) -> Result<PathBuf> {
    file_with(data, places, &fetch::download)
}

fn file_with(data: &str, places: &Places, download: &fetch::Download) -> Result<PathBuf> {
    if let Some(named) = fetch::NAMED.iter().find(|named| named.name == data) {
        return fetch::find(named, places, download);
    }
    let path = PathBuf::from(data);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match data {
            BUILTIN => Err(DataError::Builtin),
            _ => Err(unknown(data)),
        },
        Err(error) => Err(DataError::io("look at", &path)(error)),
        Ok(_) => Ok(path),
    }
}

/// A share for validation leaves something to learn from.
pub(super) fn check_share(share: f64) -> Result<()> {
    if (0.0..1.0).contains(&share) { Ok(()) } else { Err(DataError::Share { share }) }
}

fn unknown(name: &str) -> DataError {
    let named = fetch::NAMED.iter().map(|named| named.name);
    let known: Vec<&str> = std::iter::once(BUILTIN).chain(named).collect();
    DataError::Unknown { name: name.to_owned(), known: known.join(", ") }
}

/// Makes token files of a large text, unless they are there from an earlier time.
fn into_cache(
    path: PathBuf,
    spec: &Spec,
    found: &std::fs::Metadata,
    places: &Places,
) -> Result<PathBuf> {
    let path = path.canonicalize().map_err(DataError::io("look at", &path))?;
    let (tokenizer, validation) = (spec.tokenizer.clone(), spec.validation);
    let made_by = tokenizer.as_deref().map(Tokenizer::load).transpose()?;
    let made_by = made_by.map(|tokenizer| tokenizer.fingerprint());
    let (bytes, time) = (found.len(), found.modified().ok());
    let what = format!("{path:?} {bytes} {time:?} {made_by:?} {validation}");
    let name = &hex(&Sha256::digest(what))[..16];
    let folder = places.cache()?.join("prepared").join(name);
    if folder.join(folder::ABOUT).exists() {
        return Ok(folder);
    }
    let inputs = vec![path];
    let plan = Plan { inputs, tokenizer, validation, folder, replace: false };
    match folder::prepare(&plan, &mut |_| Ok(())) {
        // Another process was faster.
        Ok(_) | Err(DataError::Exists { .. }) => Ok(plan.folder),
        Err(error) => Err(error),
    }
}

/// Data, ready to be read.
#[derive(Debug, Clone)]
pub struct Dataset {
    /// To learn from.
    pub train: Tokens,
    /// To see what was learned.
    pub validation: Tokens,
    /// What the tokens mean.
    pub tokenizer: Tokenizer,
    /// What tells it from other data, tokens and tokenizer.
    pub digest: String,
}

impl Dataset {
    /// Tokens and what they mean.
    pub fn new(train: Tokens, validation: Tokens, tokenizer: Tokenizer) -> Result<Self> {
        let mut sum = Sha256::new_with_prefix(tokenizer.fingerprint());
        for tokens in [&train, &validation] {
            sum.update(tokens.digest()?);
        }
        let mut digest = hex(&sum.finalize());
        digest.truncate(16);
        Ok(Self { train, validation, tokenizer, digest })
    }

    /// Reads all of what is in files, and compares with their checksums.
    pub fn verify(&self) -> Result<()> {
        [&self.train, &self.validation].into_iter().try_for_each(|tokens| match tokens {
            Tokens::Memory(_) => Ok(()),
            Tokens::File(file) => file.verify(),
        })
    }
}

/// Opens data that is on this machine.
pub fn open(prepared: &Prepared) -> Result<Dataset> {
    match prepared {
        Prepared::Builtin { tokenizer, validation } => {
            of_text(&builtin::text(), tokenizer.as_deref(), *validation, "the built-in text")
        }
        Prepared::Text { path, tokenizer, validation } => {
            let bytes = std::fs::read(path).map_err(DataError::io("read", path))?;
            let text = String::from_utf8(bytes).map_err(|error| DataError::NotUtf8 {
                path: path.clone(),
                byte: error.utf8_error().valid_up_to() as u64,
            })?;
            of_text(&text, tokenizer.as_deref(), *validation, &path.display().to_string())
        }
        Prepared::Folder { path, tokenizer } => of_folder(path, tokenizer.as_deref()),
        Prepared::RawU16 { path, tokenizer } => {
            let tokenizer = Tokenizer::load(tokenizer)?;
            let file = |name: &str| {
                let file = TokenFile::open_raw_u16(&path.join(name), tokenizer.vocabulary())?;
                Ok(Tokens::File(Arc::new(file)))
            };
            let (train, validation) = (file("train.bin")?, file("val.bin")?);
            Dataset::new(train, validation, tokenizer)
        }
    }
}

fn of_text(text: &str, tokenizer: Option<&Path>, validation: f64, what: &str) -> Result<Dataset> {
    if text.is_empty() {
        return Err(DataError::Empty { what: what.to_owned() });
    }
    let tokenizer = match tokenizer {
        Some(path) => Tokenizer::load(path)?,
        None => Tokenizer::of_characters(text.chars()),
    };
    let (train, validation) = pieces::cut(text, validation);
    let tokens = |text: &str| Ok(Tokens::Memory(tokenizer.encode(text)?.into()));
    let (train, validation) = (tokens(train)?, tokens(validation)?);
    Dataset::new(train, validation, tokenizer)
}

/// A folder's tokens, if they were made with the tokenizer beside them, and with the one that was
/// asked for.
fn of_folder(path: &Path, wanted: Option<&Path>) -> Result<Dataset> {
    folder::about(path)?;
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

/// Tokens in memory or in a file. Copies share them.
#[derive(Debug, Clone)]
pub enum Tokens {
    /// All of them.
    Memory(Arc<[u32]>),
    /// Those of a file.
    File(Arc<TokenFile>),
}

impl Tokens {
    /// How many there are.
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(all) => all.len() as u64,
            Self::File(file) => file.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What tells them from other tokens. Files say it of themselves, or it is cheap.
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

    /// Reads some into `out`, whose content is replaced.
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
