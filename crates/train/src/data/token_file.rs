//! Token files: a header, then the tokens, 2 or 4 bytes each, little-endian.
//!
//! They are mapped into memory, so that ranks of a node share what they read. A mapped file that is
//! cut shorter ends the program that reads behind its end (SIGBUS), so its length is checked when it
//! is opened and again before each read; a new file never replaces the content of an old one, but
//! its name ([`TokenWriter`] renames), so that who reads the old one goes on with it.

mod header;
mod writer;

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::error::{DataError, Result};
use super::tokenizer::hex;
pub use header::{HEADER_BYTES, Header, VERSION};
pub use writer::TokenWriter;
pub(super) use writer::sync_folder_of;

/// How many parts are looked at to tell a file without a checksum from others, and how many tokens
/// each has.
const LOOKS: u64 = 1024;
const LOOK: u64 = 2048;

/// A file of tokens, open for reading.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: File,
    map: Mmap,
    header: Header,
    /// Where the tokens begin.
    start: u64,
}

impl TokenFile {
    /// Opens a file and checks that it is one, and whole.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(DataError::io("open the token file", path))?;
        let length = length(&file, path)?;
        let mut first = Vec::with_capacity(HEADER_BYTES);
        let begin = file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut first);
        begin.map_err(DataError::io("read the token file", path))?;
        let header = Header::parse(&first, length, path)?;
        Self::mapped(path, file, header, HEADER_BYTES as u64)
    }

    /// Opens bare numbers of 16 bits, as nanoGPT writes them. Nothing can be checked but their
    /// range.
    pub fn open_raw_u16(path: &Path, vocabulary: usize) -> Result<Self> {
        let file = File::open(path).map_err(DataError::io("open the token file", path))?;
        let length = length(&file, path)?;
        if length == 0 {
            return Err(DataError::Empty { what: path.display().to_string() });
        }
        if length % 2 != 0 {
            let (path, expected) = (path.to_owned(), length + 1);
            return Err(DataError::Length { path, expected, found: length });
        }
        let header = Header::raw_u16(length / 2, vocabulary);
        Self::mapped(path, file, header, 0)
    }

    fn mapped(path: &Path, file: File, header: Header, start: u64) -> Result<Self> {
        // SAFETY: the map is only read, in `bytes`, after a look at whether the file still is as
        // long; the values that are read are checked, whatever they have become.
        let map = unsafe { Mmap::map(&file) }.map_err(DataError::io("map", path))?;
        Ok(Self { path: path.to_owned(), file, map, header, start })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many tokens there are.
    pub fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads tokens into `out`, whose content is replaced.
    pub fn tokens(&self, range: Range<u64>, out: &mut Vec<u32>) -> Result<()> {
        let first = range.start;
        let bytes = self.bytes(range)?;
        out.clear();
        match self.header.token_bytes {
            2 => out
                .extend(bytes.as_chunks::<2>().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)))),
            _ => out.extend(bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b))),
        }
        let vocabulary = self.header.vocabulary;
        match out.iter().position(|token| u64::from(*token) >= vocabulary) {
            None => Ok(()),
            Some(at) => Err(DataError::OutOfVocabulary {
                path: self.path.clone(),
                offset: first + at as u64,
                token: out[at],
                vocabulary: vocabulary as usize,
            }),
        }
    }

    /// Reads all of it and compares with the checksum in the header, if there is one.
    pub fn verify(&self) -> Result<()> {
        let Some(expected) = self.header.checksum else { return Ok(()) };
        let mut sum = Sha256::new();
        let step = 1 << 20;
        for start in (0..self.len()).step_by(step) {
            sum.update(self.bytes(start..self.len().min(start + step as u64))?);
        }
        let found = sum.finalize();
        if found[..] == expected {
            return Ok(());
        }
        let (expected, found) = (hex(&expected), hex(&found));
        Err(DataError::Damaged { path: self.path.clone(), expected, found })
    }

    /// What tells its tokens from others: the checksum in its header. Of a file without one only
    /// some parts are looked at, all over it: all of it would take long.
    pub fn digest(&self) -> Result<[u8; 32]> {
        if let Some(sum) = self.header.checksum {
            return Ok(sum);
        }
        let mut sum = Sha256::new_with_prefix(self.len().to_le_bytes());
        let step = (self.len() / LOOKS).max(LOOK);
        for start in (0..self.len()).step_by(step as usize) {
            sum.update(self.bytes(start..self.len().min(start + LOOK))?);
        }
        sum.update(self.bytes(self.len().saturating_sub(LOOK)..self.len())?);
        Ok(sum.finalize().into())
    }

    /// The bytes of tokens, if the file still has them.
    fn bytes(&self, range: Range<u64>) -> Result<&[u8]> {
        let Range { start, end } = range;
        if start > end || end > self.len() {
            let (what, tokens) = (self.path.display().to_string(), self.len());
            return Err(DataError::OutOfRange { what, start, end, tokens });
        }
        let found = length(&self.file, &self.path)?;
        let expected = self.map.len() as u64;
        if found < expected {
            return Err(DataError::Length { path: self.path.clone(), expected, found });
        }
        let at = |token: u64| (self.start + token * self.header.token_bytes) as usize;
        Ok(&self.map[at(start)..at(end)])
    }
}

fn length(file: &File, path: &Path) -> Result<u64> {
    Ok(file.metadata().map_err(DataError::io("look at", path))?.len())
}

#[cfg(test)]
mod tests;
