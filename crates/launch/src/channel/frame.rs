//! Framing: each payload is preceded by its length, a big-endian `u32`.

use regatta_wire::link;

/// Maximum payload length in bytes. An agent forwards a frame in one message of the same maximum
/// length, which needs a few bytes for the rank and the attempt.
pub const MAX_FRAME_LEN: usize = link::MAX_FRAME_LEN - 64;

/// Length of the prefix.
pub(super) const PREFIX_LEN: usize = size_of::<u32>();

/// Why a byte stream is not a sequence of frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame exceeds the maximum length.
    #[error("a frame of {0} bytes exceeds the maximum of {MAX_FRAME_LEN}")]
    TooLong(usize),
    /// The stream ended within a frame.
    #[error("the channel was closed after {received} of {length} bytes of a frame")]
    Truncated {
        /// Bytes received, with the prefix.
        received: usize,
        /// Length with the prefix, as far as it is known.
        length: usize,
    },
}

/// Incremental decoder of a byte stream from a process that is not trusted.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    prefix: [u8; PREFIX_LEN],
    prefix_filled: usize,
    /// Grows with the data that arrives: the announced length is not trusted.
    payload: Vec<u8>,
}

impl FrameDecoder {
    /// Decodes bytes and appends the payloads that are complete. An error is final.
    pub fn push(&mut self, mut bytes: &[u8], frames: &mut Vec<Vec<u8>>) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            bytes = match self.payload_len()? {
                None => self.fill_prefix(bytes),
                Some(length) => {
                    let missing = length - self.payload.len();
                    let (consumed, rest) = bytes.split_at(bytes.len().min(missing));
                    self.payload.extend_from_slice(consumed);
                    rest
                }
            };
            if self.payload_len()? == Some(self.payload.len()) {
                frames.push(std::mem::take(&mut self.payload));
                self.prefix_filled = 0;
            }
        }
        Ok(())
    }

    /// Consumes bytes of the prefix and returns the rest.
    fn fill_prefix<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let missing = &mut self.prefix[self.prefix_filled..];
        let (consumed, rest) = bytes.split_at(bytes.len().min(missing.len()));
        missing[..consumed.len()].copy_from_slice(consumed);
        self.prefix_filled += consumed.len();
        rest
    }

    /// Checks that the stream does not end within a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        match (self.prefix_filled, self.payload_len()?) {
            (0, _) => Ok(()),
            (filled, length) => Err(FrameError::Truncated {
                received: filled + self.payload.len(),
                length: PREFIX_LEN + length.unwrap_or(0),
            }),
        }
    }

    /// Length of the current payload, once the prefix is complete.
    fn payload_len(&self) -> Result<Option<usize>, FrameError> {
        if self.prefix_filled < PREFIX_LEN {
            return Ok(None);
        }
        match u32::from_be_bytes(self.prefix) as usize {
            length if length > MAX_FRAME_LEN => Err(FrameError::TooLong(length)),
            length => Ok(Some(length)),
        }
    }
}

/// The prefix of a payload.
pub(super) fn prefix(payload: &[u8]) -> Result<[u8; PREFIX_LEN], FrameError> {
    match payload.len() {
        length if length > MAX_FRAME_LEN => Err(FrameError::TooLong(length)),
        length => Ok((length as u32).to_be_bytes()),
    }
}
