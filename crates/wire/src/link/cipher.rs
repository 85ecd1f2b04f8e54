//! Encryption of frames: ChaCha20-Poly1305 with a key per direction and connection. The nonce is the
//! number of the frame, so a frame that is altered, replayed, reordered or dropped fails to
//! authenticate. The length prefix is authenticated as associated data.

use std::fmt;

use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit, Nonce, Tag};

use super::send_buffer::SendBuffer;
use super::{LinkError, Result};

const TAG_LEN: usize = 16;

/// Bytes that sealing adds to a payload: its kind and the tag.
pub(super) const OVERHEAD: usize = 1 + TAG_LEN;

/// The last byte of the plaintext.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data,
    Heartbeat,
}

/// The cipher of one direction.
pub(super) struct FrameCipher {
    cipher: ChaCha20Poly1305,
    /// Frames sealed or opened so far.
    frames: u64,
}

impl FrameCipher {
    /// The key must be unique to the direction and the connection.
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self { cipher: ChaCha20Poly1305::new(&key.into()), frames: 0 }
    }

    /// Appends a frame to a buffer. False if the payload is longer than the cipher allows, which
    /// exceeds every frame.
    pub(super) fn seal(&mut self, kind: FrameKind, payload: &[u8], out: &mut SendBuffer) -> bool {
        let prefix = prefix(payload.len() + OVERHEAD);
        let mut text = Vec::with_capacity(payload.len() + 1);
        text.extend_from_slice(payload);
        text.push(kind as u8);
        let nonce = self.nonce();
        let sealed = self.cipher.encrypt_inout_detached(&nonce, &prefix, text[..].as_mut().into());
        let Ok(tag) = sealed else { return false };
        self.frames += 1;
        [&prefix[..], &text, &tag].into_iter().for_each(|part| out.push(part));
        true
    }

    /// Decrypts a frame without its length prefix; `None` for a heartbeat.
    pub(super) fn open(&mut self, mut frame: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let prefix = prefix(frame.len());
        let text_len = frame.len().saturating_sub(TAG_LEN);
        let tag = Tag::try_from(&frame[text_len..]).map_err(|_| LinkError::FrameNotAuthentic)?;
        frame.truncate(text_len);
        let nonce = self.nonce();
        self.cipher
            .decrypt_inout_detached(&nonce, &prefix, frame[..].as_mut().into(), &tag)
            .map_err(|_| LinkError::FrameNotAuthentic)?;
        self.frames += 1;
        let heartbeat = frame.pop() == Some(FrameKind::Heartbeat as u8);
        Ok((!heartbeat).then_some(frame))
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[4..].copy_from_slice(&self.frames.to_be_bytes());
        nonce
    }
}

/// The length prefix of a sealed frame, of at most 64 MiB and a few bytes.
fn prefix(len: usize) -> [u8; 4] {
    (len as u32).to_be_bytes()
}

impl fmt::Debug for FrameCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameCipher").field("frames", &self.frames).finish_non_exhaustive()
    }
}
