//! Events from rank 0 to its parent process. The launcher truncates long lines, so an event is sent
//! as numbered chunks, one per line. No I/O.

use std::fmt;

/// Bytes per chunk: with the prefix well below the launcher's line limit.
const MAX_BYTES: usize = 32 << 10;

/// Splits a text without line ends into chunks: `0/2 ...` and `1/2 ...`.
pub fn split(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, more) = rest.split_at(rest.floor_char_boundary(MAX_BYTES));
        parts.push(part);
        if more.is_empty() {
            break;
        }
        rest = more;
    }
    let total = parts.len();
    parts.iter().enumerate().map(|(index, part)| format!("{index}/{total} {part}")).collect()
}

/// Reassembles texts from chunks.
#[derive(Debug, Default)]
pub struct ChunkAssembler {
    text: String,
    /// Index of the next chunk and total of a started text.
    next: Option<(usize, usize)>,
}

/// Chunks that cannot be reassembled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkError {
    /// The chunk has no valid header.
    InvalidHeader,
    /// A chunk is missing or out of order.
    OutOfOrder { expected: usize, received: usize, total: usize },
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidHeader => write!(f, "invalid chunk header"),
            Self::OutOfOrder { expected, received, total } => {
                write!(f, "received chunk {received} of {total}, expected chunk {expected}")
            }
        }
    }
}

impl ChunkAssembler {
    /// Adds a chunk; returns the text if it is complete. After an error, the next text is
    /// reassembled as if nothing had been received before.
    pub fn push(&mut self, chunk: &str) -> Result<Option<String>, ChunkError> {
        let expected = self.next.take();
        let (index, total, part) = parse_chunk(chunk).ok_or(ChunkError::InvalidHeader)?;
        if expected.unwrap_or((0, total)) != (index, total) {
            if index == 0 && total > 1 {
                // The previous text is incomplete; this one may be fine.
                self.text = part.to_owned();
                self.next = Some((1, total));
            }
            let expected = expected.map_or(0, |(next, _)| next);
            return Err(ChunkError::OutOfOrder { expected, received: index, total });
        }
        if index == 0 {
            self.text.clear();
        }
        self.text.push_str(part);
        if index + 1 == total {
            return Ok(Some(std::mem::take(&mut self.text)));
        }
        self.next = Some((index + 1, total));
        Ok(None)
    }
}

/// Index, total and content of a chunk.
fn parse_chunk(chunk: &str) -> Option<(usize, usize, &str)> {
    let (header, part) = chunk.split_once(' ')?;
    let (index, total) = header.split_once('/')?;
    let (index, total) = (index.parse().ok()?, total.parse().ok()?);
    (index < total).then_some((index, total, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn long() -> Vec<String> {
        let all = split(&"€".repeat(MAX_BYTES));
        assert!(all.len() >= 3);
        all
    }

    /// All texts and errors from a sequence of chunks.
    fn assemble<'a>(all: impl IntoIterator<Item = &'a String>) -> Vec<Result<String, ChunkError>> {
        let mut assembler = ChunkAssembler::default();
        all.into_iter().filter_map(|chunk| assembler.push(chunk).transpose()).collect()
    }

    #[test]
    fn a_missing_chunk_is_an_error_and_the_next_text_is_complete() {
        let (long, short) = (long(), split("short"));
        for missing in 0..long.len() {
            let some = long.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, p)| p);
            let found = assemble(some.chain(&long).chain(&short));
            assert!(found[0].is_err(), "{missing}");
            assert_eq!(found.last(), Some(&Ok("short".to_owned())));
            let complete = found.iter().filter(|one| **one == Ok("€".repeat(MAX_BYTES))).count();
            assert_eq!(complete, 1, "{missing}");
        }
    }

    #[test]
    fn chunks_out_of_order_or_without_header_are_errors() {
        let long = long();
        assert!(assemble(long.iter().rev()).iter().all(Result::is_err));
        assert!(assemble([&long[0], &long[0]]).iter().all(Result::is_err));
        for chunk in ["", "0", "0/1", "1/1 x", "-1/1 x", "0/0 ", "{\"end\": 1}", "0/x 1"] {
            assert_eq!(ChunkAssembler::default().push(chunk), Err(ChunkError::InvalidHeader));
        }
    }

    proptest! {
        #[test]
        fn split_texts_are_reassembled(
            texts in proptest::collection::vec(("\\PC{0,40}", 0usize..4000), 1..4)
        ) {
            let texts: Vec<String> = texts.into_iter().map(|(t, times)| t.repeat(times)).collect();
            let all: Vec<String> = texts.iter().flat_map(|text| split(text)).collect();
            prop_assert!(all.iter().all(|chunk| chunk.len() < MAX_BYTES + 32));
            let texts: Vec<Result<String, ChunkError>> = texts.into_iter().map(Ok).collect();
            prop_assert_eq!(assemble(&all), texts);
        }

        #[test]
        fn push_never_panics(all in proptest::collection::vec("\\PC{0,12}|[0-3]/[0-3] x", 0..9)) {
            assemble(&all);
        }
    }
}
