//! Writes a token file under a temporary name, renamed when complete and synced.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::super::beside;
use super::super::error::{DataError, Result};
use super::header::{HEADER_BYTES, Header};

/// A token file being written.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    /// Temporary path.
    part: PathBuf,
    file: BufWriter<File>,
    sum: Sha256,
    header: Header,
    bytes: Vec<u8>,
}

impl TokenWriter {
    /// Starts a file of tokens below `vocabulary`. An existing file stays until the end.
    pub fn create(path: &Path, vocabulary: usize, fingerprint: &str) -> Result<Self> {
        let part = beside(path, "part");
        let file = File::create(&part).map_err(DataError::io("write", &part))?;
        let header = Header {
            token_bytes: if vocabulary <= 1 << 16 { 2 } else { 4 },
            tokens: 0,
            vocabulary: vocabulary as u64,
            fingerprint: Some(fingerprint.to_owned()),
            checksum: None,
        };
        let (path, sum, bytes) = (path.to_owned(), Sha256::new(), Vec::new());
        let mut writer = Self { path, part, file: BufWriter::new(file), sum, header, bytes };
        let empty = writer.file.write_all(&[0; HEADER_BYTES]);
        empty.map_err(DataError::io("write", &writer.part))?;
        Ok(writer)
    }

    /// Appends tokens.
    pub fn push(&mut self, tokens: &[u32]) -> Result<()> {
        self.bytes.clear();
        for (at, token) in tokens.iter().enumerate() {
            if u64::from(*token) >= self.header.vocabulary {
                return Err(DataError::OutOfVocabulary {
                    path: self.path.clone(),
                    offset: self.header.tokens + at as u64,
                    token: *token,
                    vocabulary: self.header.vocabulary as usize,
                });
            }
            let bytes = token.to_le_bytes();
            self.bytes.extend_from_slice(&bytes[..self.header.token_bytes as usize]);
        }
        self.sum.update(&self.bytes);
        self.header.tokens += tokens.len() as u64;
        self.file.write_all(&self.bytes).map_err(DataError::io("write", &self.part))
    }

    /// Writes the header, syncs and renames the file.
    pub fn finish(mut self) -> Result<Header> {
        self.header.checksum = Some(std::mem::take(&mut self.sum).finalize().into());
        let header = self.header.clone();
        self.write_header(&header).map_err(DataError::io("write", &self.part))?;
        std::fs::rename(&self.part, &self.path).map_err(DataError::io("rename to", &self.path))?;
        sync_parent_dir(&self.path)?;
        Ok(header)
    }

    fn write_header(&mut self, header: &Header) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header.to_bytes())?;
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }
}

impl Drop for TokenWriter {
    /// Removes an unfinished file.
    fn drop(&mut self) {
        // Already renamed on success.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// Syncs the directory of a file.
pub fn sync_parent_dir(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(DataError::io("write the folder", folder))
}
