//! What can be wrong with data.

use std::path::{Path, PathBuf};

/// A result about data.
pub type Result<T> = std::result::Result<T, DataError>;

/// What is wrong with data, with the file and the way out.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file cannot be read or written.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// There is neither such a file nor such a name.
    #[error(
        "there is no data {name:?}: give a text file, a folder of `regatta data prepare`, or one of {known}"
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The project's own text, as if it were a file.
    #[error(
        "builtin is a part of the program, and there is nothing to prepare: `regatta train` trains \
         on it as it is"
    )]
    Builtin,
    /// A text without a character.
    #[error("{what} is empty")]
    Empty {
        /// The file.
        what: String,
    },
    /// A text that is a folder, a pipe or a device.
    #[error("{} is no file of text, and texts are read more than once: name the files themselves", path.display())]
    NoFile {
        /// What it is instead.
        path: PathBuf,
    },
    /// A text of which all is for validation.
    #[error(
        "of {bytes} bytes of text nothing is left to learn from beside what is for validation: take \
         more text, or a smaller share for validation"
    )]
    Short {
        /// How long it is.
        bytes: u64,
    },
    /// Whoever asked for it wants it no more.
    #[error("interrupted: nothing was made")]
    Interrupted,
    /// A text that is none.
    #[error("{} is not UTF-8 text: byte {byte}", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Where it stops being text, from 0.
        byte: u64,
    },
    /// A character that the tokenizer has never seen.
    #[error(
        "the character {character:?} at position {position} is not in the tokenizer's vocabulary \
         of {vocabulary} characters"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// How many characters are before it.
        position: usize,
        /// How many characters the tokenizer knows.
        vocabulary: usize,
    },
    /// A byte that the tokenizer has no token for.
    #[error("the tokenizer has no token for the byte 0x{byte:02x} of {text:?}")]
    UnknownByte {
        /// The byte.
        byte: u8,
        /// The word it is in, shortened.
        text: String,
    },
    /// A token that the tokenizer has not.
    #[error("there is no token {token} in a vocabulary of {vocabulary}")]
    NoSuchToken {
        /// The token.
        token: u32,
        /// How many tokens there are.
        vocabulary: usize,
    },
    /// A tokenizer file that cannot be used.
    #[error("{} cannot be used as a tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that is no token file.
    #[error("{} is no token file of regatta; for bare numbers of 16 bits, as nanoGPT has them, say raw-u16:{}", path.display(), path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A token file of another version.
    #[error("{} is a token file of version {found}, this regatta reads {known}: prepare it anew", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// What is read.
        known: u32,
    },
    /// A token file whose header has been altered.
    #[error("the header of {} is damaged: prepare it anew", path.display())]
    Header {
        /// The file.
        path: PathBuf,
    },
    /// A token file of another length than its header says.
    #[error("{} has {found} bytes, and should have {expected}: it was cut short or altered, prepare it anew", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// What it should have.
        expected: u64,
        /// What it has.
        found: u64,
    },
    /// A token file with other tokens than were written.
    #[error("the tokens of {} are damaged: SHA-256 is {found}, and was {expected} when it was written; prepare it anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// As its header says.
        expected: String,
        /// As it is.
        found: String,
    },
    /// A token in a file that the vocabulary has not.
    #[error("token {token} at offset {offset} of {} is not below the vocabulary of {vocabulary}", path.display())]
    OutOfVocabulary {
        /// The file.
        path: PathBuf,
        /// Which token, from 0.
        offset: u64,
        /// What it is.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// Tokens that are not there.
    #[error("tokens {start}..{end} of {what} do not exist: there are {tokens}")]
    OutOfRange {
        /// The file.
        what: String,
        /// The first asked for.
        start: u64,
        /// Behind the last asked for.
        end: u64,
        /// How many there are.
        tokens: u64,
    },
    /// Fewer tokens than a sample has.
    #[error(
        "there are {tokens} tokens, and a sample of context {context} needs {}: take more text or a \
         smaller context", context + 1
    )]
    TooShort {
        /// How many there are.
        tokens: u64,
        /// Inputs of a sample.
        context: u64,
    },
    /// Samples of nothing.
    #[error("a context of 0 tokens holds nothing to learn")]
    NoContext,
    /// Token files made with another tokenizer than the one beside them.
    #[error(
        "{} was made with the tokenizer {of_file}, and {} is {of_tokenizer}: prepare it anew",
        path.display(), tokenizer.display()
    )]
    OtherTokenizer {
        /// The token file.
        path: PathBuf,
        /// The tokenizer file.
        tokenizer: PathBuf,
        /// The fingerprint in the token file.
        of_file: String,
        /// The fingerprint of the tokenizer.
        of_tokenizer: String,
    },
    /// A folder that is none of ours.
    #[error("{} is no folder of `regatta data prepare`: {reason}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Something is there already.
    #[error("{} exists already: take another folder, or --force to replace it", path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// A set cannot be fetched.
    #[error(
        "cannot fetch {name} from {address}: {reason}. Without a network: put the file where it is \
         looked for, {}", path.display()
    )]
    Fetch {
        /// The set.
        name: String,
        /// From where.
        address: String,
        /// What went wrong.
        reason: String,
        /// Where the file may be put by hand.
        path: PathBuf,
    },
    /// A set of other bytes than are known.
    #[error("{} is not {name}: SHA-256 is {found}, and should be {expected}", path.display())]
    WrongSet {
        /// The set.
        name: String,
        /// The file, or where it came from.
        path: PathBuf,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A share for validation that leaves nothing.
    #[error("the share for validation is {share}, and must be from 0 to below 1")]
    Share {
        /// What was asked for.
        share: f64,
    },
    /// A thread that reads ahead cannot be started, or is gone.
    #[error("cannot read ahead: {reason}")]
    Ahead {
        /// Why.
        reason: String,
    },
}

impl DataError {
    /// Something failed with a file.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }

    /// The same fault, if so many characters were before the text.
    pub(super) fn behind(self, characters: usize) -> Self {
        match self {
            Self::UnknownCharacter { character, position, vocabulary } => {
                let position = position + characters;
                Self::UnknownCharacter { character, position, vocabulary }
            }
            other => other,
        }
    }

    /// A tokenizer file cannot be used.
    pub(super) fn tokenizer(path: &Path, reason: impl Into<String>) -> Self {
        Self::Tokenizer { path: path.to_owned(), reason: reason.into() }
    }
}
