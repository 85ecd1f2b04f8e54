//! Data errors.

use std::path::{Path, PathBuf};

/// A result about data.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

/// What is wrong with data, with the file and the fix.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum DataError {
    /// An I/O error.
    #[error("cannot {doing} {}: {source}{}", path.display(), create_hint(doing, source))]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    /// Neither a file nor a known dataset.
    #[error(
        "data.source {name:?} does not exist: expected a text file, a folder written by `regatta data prepare`, or \
        {}",
        super::builtin::NAME
    )]
    UnknownSource { name: String },
    /// An input of `regatta data prepare` that is neither a file nor a known dataset.
    #[error("{name:?} does not exist, and is not the name of a dataset ({})", super::builtin::NAME)]
    UnknownInput { name: String },
    /// An empty text.
    #[error("{what} is empty")]
    Empty { what: String },
    /// Not a regular file.
    #[error("{} is not a regular file: inputs are read twice, so pipes and directories are not supported; name text files, as in DIR/*.txt", path.display())]
    NoFile { path: PathBuf },
    /// The training split is empty.
    #[error(
        "the training split is empty ({bytes} bytes in total): use more text or a smaller \
        validation fraction"
    )]
    Short { bytes: u64 },
    /// Interrupted by the caller.
    #[error("interrupted: nothing was written")]
    Interrupted,
    /// Not UTF-8.
    #[error("{} is not UTF-8: invalid byte at offset {byte}", path.display())]
    NotUtf8 { path: PathBuf, byte: u64 },
    /// The character is not in the vocabulary.
    #[error(
        "character {}, {character:?}, is not among the {vocabulary} characters {whose}: remove it",
        position + 1
    )]
    UnknownCharacter { character: char, position: usize, vocabulary: usize, whose: &'static str },
    /// The tokenizer has no token for a byte.
    #[error("the tokenizer has no token for byte 0x{byte:02x} of {text:?}")]
    UnknownByte { byte: u8, text: String },
    /// The token is not in the vocabulary.
    #[error("token {token} is not in the vocabulary of {vocabulary} tokens")]
    NoSuchToken { token: u32, vocabulary: usize },
    /// An unsupported or invalid tokenizer file.
    #[error("cannot use {} as a tokenizer: {reason}", path.display())]
    Tokenizer { path: PathBuf, reason: String },
    /// Not a token file.
    #[error(
        "{} is not a regatta token file; to train on nanoGPT's train.bin and val.bin, set data.source=raw-u16:FOLDER",
        path.display()
    )]
    Foreign { path: PathBuf },
    /// A token file of another version.
    #[error(
        "{} has token file version {found}, but this regatta reads version {known}: {}",
        path.display(),
        if found > known { "update regatta" } else { "prepare it again" }
    )]
    Version { path: PathBuf, found: u32, known: u32 },
    /// The header is damaged.
    #[error("the header of {} is damaged: prepare it again", path.display())]
    Header { path: PathBuf },
    /// The size does not match the header.
    #[error("{} has {found} bytes instead of {expected}: it was truncated or modified; prepare it again", path.display())]
    Length { path: PathBuf, expected: u64, found: u64 },
    /// The tokens do not match their checksum.
    #[error("the tokens of {} are damaged: SHA-256 is {found} instead of {expected}; prepare it again", path.display())]
    Damaged { path: PathBuf, expected: String, found: String },
    /// A token in a file is out of range.
    #[error("token {token} at offset {offset} of {} exceeds the vocabulary of {vocabulary} tokens", path.display())]
    OutOfVocabulary { path: PathBuf, offset: u64, token: u32, vocabulary: usize },
    /// A range outside of the file.
    #[error("tokens {start}..{end} are out of range: {what} has {tokens}")]
    OutOfRange { what: String, start: u64, end: u64, tokens: u64 },
    /// Fewer tokens than a sequence.
    #[error(
        "{tokens} tokens are too few for model.seq_len {seq_len}, which needs {}: use more text or a \
        smaller model.seq_len", seq_len + 1
    )]
    TooShort { tokens: u64, seq_len: u64 },
    /// Sequence length 0.
    #[error("the sequence length is 0")]
    NoContext,
    /// The token files were made with another tokenizer.
    #[error(
        "{} was prepared with tokenizer {of_file}, but {} has fingerprint {of_tokenizer}: prepare the data again",
        path.display(), tokenizer.display()
    )]
    OtherTokenizer { path: PathBuf, tokenizer: PathBuf, of_file: String, of_tokenizer: String },
    /// The data was not prepared with the character tokenizer.
    #[error(
        "data.tokenizer is char, but {} was prepared with a {tokenizer} tokenizer of {vocabulary} tokens: remove \
        data.tokenizer, or prepare the text again with `regatta data prepare --characters`",
        path.display()
    )]
    NotCharacters { path: PathBuf, tokenizer: String, vocabulary: usize },
    /// Raw tokens without their tokenizer.
    #[error("data.source raw-u16:{} needs data.tokenizer: set it to the tokenizer.json that produced the tokens", path.display())]
    NoTokenizer { path: PathBuf },
    /// Not a prepared folder.
    #[error("{} is not a folder written by `regatta data prepare`: {reason}", path.display())]
    Folder { path: PathBuf, reason: String },
    /// The output exists.
    #[error("{} already exists: choose another folder, or replace it with --force", path.display())]
    Exists { path: PathBuf },
    /// An invalid validation fraction.
    #[error(
        "validation fraction {fraction} (--validation, data.val_fraction): expected a number in [0, 1)"
    )]
    ValFraction { fraction: f64 },
    /// The loader thread cannot be started, or panicked.
    #[error("data prefetching failed: {reason}")]
    Prefetch { reason: String },
}

/// The fix if a folder cannot be created.
fn create_hint(doing: &str, source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match doing == "create" && [PermissionDenied, ReadOnlyFilesystem].contains(&source.kind()) {
        true => {
            "; name a writable folder with --output, or with XDG_CACHE_HOME for a named dataset"
        }
        false => "",
    }
}

impl DataError {
    /// Wraps an I/O error.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    /// The same error for training data, with the position shifted by `characters`.
    pub(super) fn in_data(mut self, characters: usize) -> Self {
        if let Self::UnknownCharacter { position, whose, .. } = &mut self {
            *position += characters;
            *whose = "of the tokenizer";
        }
        self
    }

    /// An unsupported or invalid tokenizer file.
    pub(super) fn tokenizer(path: &Path, reason: impl Into<String>) -> Self {
        Self::Tokenizer { path: path.to_owned(), reason: reason.into() }
    }
}
