//! Token files: a header, then the tokens, 2 or 4 bytes each, little-endian.
//!
//! They are memory-mapped, so that the ranks of a node share the page cache. Reading past the end of a truncated map
//! raises SIGBUS, so the size is checked on open and before each read. Files are never overwritten in place:
//! [`TokenWriter`] renames, so that readers of the old file are unaffected.

mod header;
mod writer;

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use regatta_model::text::hex;
use sha2::{Digest, Sha256};

use super::error::{DataError, Result};
use crate::regular_file;
pub use header::{HEADER_BYTES, Header, VERSION};
pub use writer::TokenWriter;
pub(super) use writer::sync_parent_dir;

/// Sampling for the digest of a file without a checksum: number of samples, and tokens per sample.
const SAMPLES: u64 = 1024;
const SAMPLE_LEN: u64 = 2048;

/// A token file, open for reading.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: File,
    map: Mmap,
    header: Header,
    /// Offset of the tokens.
    start: u64,
}

impl TokenFile {
    /// Opens a file and checks its header and size.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file =
            regular_file::open(path).map_err(DataError::io("open the token file", path))?;
        let length = length(&file, path)?;
        let mut first = Vec::with_capacity(HEADER_BYTES);
        let begin = file.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut first);
        begin.map_err(DataError::io("read the token file", path))?;
        let header = Header::parse(&first, length, path)?;
        Self::mapped(path, file, header, HEADER_BYTES as u64)
    }

    /// Opens raw 16-bit tokens as nanoGPT writes them. Only their range can be checked.
    pub fn open_raw_u16(path: &Path, vocabulary: usize) -> Result<Self> {
        let file = regular_file::open(path).map_err(DataError::io("open the token file", path))?;
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
        // SAFETY: the map is only read in `bytes`, after a check that the file still has its size; values are validated,
        // so concurrent modification is harmless.
        let map = unsafe { Mmap::map(&file) }.map_err(DataError::io("map", path))?;
        Ok(Self { path: path.to_owned(), file, map, header, start })
    }

    /// Path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads a range into `out`, replacing its contents.
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

    /// Verifies the checksum, if there is one.
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

    /// Digest of the tokens: the checksum in the header. A file without one is sampled, because reading all of it
    /// would take long.
    pub fn digest(&self) -> Result<[u8; 32]> {
        if let Some(sum) = self.header.checksum {
            return Ok(sum);
        }
        let mut sum = Sha256::new_with_prefix(self.len().to_le_bytes());
        let step = (self.len() / SAMPLES).max(SAMPLE_LEN);
        for start in (0..self.len()).step_by(step as usize) {
            sum.update(self.bytes(start..self.len().min(start + SAMPLE_LEN))?);
        }
        sum.update(self.bytes(self.len().saturating_sub(SAMPLE_LEN)..self.len())?);
        Ok(sum.finalize().into())
    }

    /// The bytes of a range, if the file still has its size.
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
    Ok(file.metadata().map_err(DataError::io("stat", path))?.len())
}

#[cfg(test)]
mod tests;
