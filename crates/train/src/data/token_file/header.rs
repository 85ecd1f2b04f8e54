//! Header of a token file. No I/O.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::super::error::{DataError, Result};

/// Magic bytes.
const MAGIC: [u8; 8] = *b"regtoken";
/// Format version.
pub const VERSION: u32 = 1;
/// Size of the header; aligns the tokens.
pub const HEADER_BYTES: usize = 128;
/// Digits of a tokenizer fingerprint.
const FINGERPRINT: usize = 16;
/// Offset of the checksum of the header up to here.
const OWN_SUM: usize = 80;

/// The header of a token file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes per token: 2 or 4.
    pub token_bytes: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Vocabulary size.
    pub vocabulary: u64,
    /// Fingerprint of the tokenizer, if known.
    pub fingerprint: Option<String>,
    /// SHA-256 of the tokens, if known.
    pub checksum: Option<[u8; 32]>,
}

impl Header {
    /// For a file without a header.
    pub(super) fn raw_u16(tokens: u64, vocabulary: usize) -> Self {
        let vocabulary = vocabulary as u64;
        Self { token_bytes: 2, tokens, vocabulary, fingerprint: None, checksum: None }
    }

    /// Serialises it.
    pub(super) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut fingerprint = [0; FINGERPRINT];
        let digits = self.fingerprint.as_deref().unwrap_or_default().bytes();
        fingerprint.iter_mut().zip(digits).for_each(|(to, digit)| *to = digit);
        let parts: [&[u8]; 7] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &(self.token_bytes as u32).to_le_bytes(),
            &self.tokens.to_le_bytes(),
            &self.vocabulary.to_le_bytes(),
            &fingerprint,
            &self.checksum.unwrap_or_default(),
        ];
        let mut bytes = parts.concat();
        bytes.extend_from_slice(&Sha256::digest(&bytes));
        let mut header = [0; HEADER_BYTES];
        header[..bytes.len()].copy_from_slice(&bytes);
        header
    }

    /// Parses the start of a file of this size.
    pub fn parse(bytes: &[u8], length: u64, path: &Path) -> Result<Self> {
        let owned = || path.to_owned();
        if bytes.len() < MAGIC.len() || bytes[..MAGIC.len()] != MAGIC {
            return Err(DataError::Foreign { path: owned() });
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            let expected = HEADER_BYTES as u64;
            return Err(DataError::Length { path: owned(), expected, found: length });
        };
        let found = u32::from_le_bytes(field(bytes, 8));
        if found != VERSION {
            return Err(DataError::Version { path: owned(), found, known: VERSION });
        }
        let damaged = || DataError::Header { path: owned() };
        if Sha256::digest(&bytes[..OWN_SUM])[..] != field::<32>(bytes, OWN_SUM) {
            return Err(damaged());
        }
        let fingerprint = String::from_utf8(field::<FINGERPRINT>(bytes, 32).to_vec());
        let header = Self {
            token_bytes: u64::from(u32::from_le_bytes(field(bytes, 12))),
            tokens: u64::from_le_bytes(field(bytes, 16)),
            vocabulary: u64::from_le_bytes(field(bytes, 24)),
            fingerprint: Some(fingerprint.map_err(|_| damaged())?),
            checksum: Some(field(bytes, 48)),
        };
        let payload = header.tokens.checked_mul(header.token_bytes);
        let expected = payload.and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64));
        match expected {
            _ if !matches!(header.token_bytes, 2 | 4) => Err(damaged()),
            None => Err(damaged()),
            Some(expected) if expected != length => {
                Err(DataError::Length { path: owned(), expected, found: length })
            }
            Some(_) => Ok(header),
        }
    }
}

fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|byte| bytes[at + byte])
}
