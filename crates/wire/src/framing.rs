//! Framing: each payload is preceded by its length, a big-endian `u32`.

/// Length of the prefix.
pub const PREFIX_LEN: usize = size_of::<u32>();

/// Why a byte stream is not a sequence of frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum FrameError {
    /// A frame exceeds the maximum length.
    #[error("a frame of {bytes} bytes exceeds the maximum of {max}")]
    TooLong { bytes: usize, max: usize },
    /// The stream ended within a frame. Both counts include the prefix.
    #[error("the stream ended after {received} of {length} bytes of a frame")]
    Truncated { received: usize, length: usize },
}

/// The prefix of a payload of at most `max` bytes.
pub fn prefix(payload: &[u8], max: usize) -> Result<[u8; PREFIX_LEN], FrameError> {
    let bytes = payload.len();
    match u32::try_from(bytes) {
        Ok(length) if bytes <= max => Ok(length.to_be_bytes()),
        _ => Err(FrameError::TooLong { bytes, max }),
    }
}

/// Incremental decoder of a byte stream from a process that is not trusted.
#[derive(Debug)]
pub struct FrameDecoder {
    max: usize,
    prefix: [u8; PREFIX_LEN],
    prefix_filled: usize,
    /// Grows with the data that arrives: the announced length is not trusted.
    payload: Vec<u8>,
}

impl FrameDecoder {
    /// A decoder of payloads of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { max, prefix: Default::default(), prefix_filled: 0, payload: Vec::new() }
    }

    /// Decodes bytes and passes on the payloads that are complete. An error is final.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        mut on_frame: impl FnMut(Vec<u8>),
    ) -> Result<(), FrameError> {
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
                on_frame(std::mem::take(&mut self.payload));
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
            bytes if bytes > self.max => Err(FrameError::TooLong { bytes, max: self.max }),
            bytes => Ok(Some(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream_of(frames: &[Vec<u8>]) -> Vec<u8> {
        frames.iter().flat_map(|f| [&prefix(f, 50).unwrap()[..], f].concat()).collect()
    }

    proptest! {
        #[test]
        fn a_truncated_stream_yields_the_complete_frames_and_an_error(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..20),
            missing in 1usize..1000,
        ) {
            let stream = stream_of(&frames);
            let end = stream.len().saturating_sub(missing);
            let mut decoder = FrameDecoder::new(50);
            let mut decoded = Vec::new();
            decoder.push(&stream[..end], |frame| decoded.push(frame)).unwrap();
            prop_assert_eq!(&decoded[..], &frames[..decoded.len()]);
            prop_assert_eq!(decoder.finish().is_ok(), stream_of(&decoded).len() == end);
        }
    }
}
