//! Reads text files as one text in chunks that can be tokenized independently: texts may be larger than memory.

use std::io::Read;
use std::path::PathBuf;

use super::error::{DataError, Result};
use crate::regular_file;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;
/// Maximum size of a chunk; beyond it, words may be split.
const MAX_CHUNK: usize = 16 << 20;

/// Split of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Training.
    Train,
    /// Validation.
    Validation,
}

/// Size of the training split for a validation fraction. A character across the boundary belongs to validation.
pub fn train_bytes(total: u64, validation: f64) -> u64 {
    (total as f64 * (1.0 - validation)) as u64
}

/// Splits a text as [`for_each_chunk`] does.
pub fn cut(text: &str, validation: f64) -> (&str, &str) {
    let at = train_bytes(text.len() as u64, validation) as usize;
    text.split_at(text.floor_char_boundary(at))
}

/// Calls `take` with the text of all files, chunk by chunk. Chunks end at word boundaries, except at byte `split`,
/// where the validation split starts.
pub fn for_each_chunk(
    files: &[PathBuf],
    split: u64,
    mut take: impl FnMut(Split, &str) -> Result<()>,
) -> Result<()> {
    let mut text = Chunker { text: String::new(), before: 0, split };
    for path in files {
        let mut file = regular_file::open(path).map_err(DataError::io("open", path))?;
        let (mut bytes, mut done) = (Vec::new(), 0);
        loop {
            let more = file.by_ref().take(CHUNK as u64).read_to_end(&mut bytes);
            let ended = more.map_err(DataError::io("read", path))? == 0;
            let valid = utf8(&bytes, ended)
                .map_err(|at| DataError::NotUtf8 { path: path.clone(), byte: done + at as u64 })?;
            text.text.push_str(valid);
            let length = valid.len();
            done += length as u64;
            bytes.drain(..length);
            text.cut(&mut take)?;
            if ended {
                break;
            }
        }
    }
    text.give(text.part(), text.text.len(), &mut take)
}

/// The longest valid UTF-8 prefix, or the offset of an invalid byte. At the end of a file all bytes must be valid.
fn utf8(bytes: &[u8], ended: bool) -> Result<&str, usize> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if ended || error.error_len().is_some() => Err(error.valid_up_to()),
        Err(error) => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).map_err(|e| e.valid_up_to())
        }
    }
}

/// Text read so far, and its offset.
struct Chunker {
    text: String,
    before: u64,
    split: u64,
}

impl Chunker {
    /// Emits complete chunks.
    fn cut(&mut self, take: &mut impl FnMut(Split, &str) -> Result<()>) -> Result<()> {
        if self.part() == Split::Train && self.before + self.text.len() as u64 >= self.split {
            let at = self.text.floor_char_boundary((self.split - self.before) as usize);
            self.give(Split::Train, at, take)?;
            self.split = self.before;
        }
        let at = match safe_cut(&self.text) {
            None if self.text.len() >= MAX_CHUNK => self.text.len(),
            at => at.unwrap_or(0),
        };
        self.give(self.part(), at, take)
    }

    fn part(&self) -> Split {
        if self.before < self.split { Split::Train } else { Split::Validation }
    }

    fn give(
        &mut self,
        part: Split,
        bytes: usize,
        take: &mut impl FnMut(Split, &str) -> Result<()>,
    ) -> Result<()> {
        if bytes > 0 {
            take(part, &self.text[..bytes])?;
            self.text.drain(..bytes);
            self.before += bytes as u64;
        }
        Ok(())
    }
}

/// The last position at which a text can be split without changing its tokens: after a line break that is not
/// adjacent to other white space. All known patterns end a word there.
fn safe_cut(text: &str) -> Option<usize> {
    let dark = |c: Option<char>| c.is_some_and(|c| !c.is_whitespace());
    let safe =
        |at: &usize| dark(text[..*at].chars().next_back()) && dark(text[at + 1..].chars().next());
    text.rmatch_indices('\n').map(|(at, _)| at).find(safe).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::TempDir;

    fn read(files: &[PathBuf], split: u64) -> Result<(Vec<String>, Vec<String>)> {
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        for_each_chunk(files, split, |part, text| {
            let all = if part == Split::Train { &mut train } else { &mut validation };
            all.push(text.to_owned());
            Ok(())
        })?;
        Ok((train, validation))
    }

    #[test]
    fn safe_cut_preserves_words() {
        assert_eq!(safe_cut("a\nb"), Some(2));
        assert_eq!(safe_cut("a\nb\nc\n"), Some(4));
        for text in ["", "a", "\n", "a\n", "\na", "a\n\nb", "a \nb", "a\n b", "é\u{a0}\nb"] {
            assert_eq!(safe_cut(text), None, "{text:?}");
        }
    }

    #[test]
    fn long_texts_are_chunked_without_loss() {
        let folder = TempDir::new();
        let line = "Größe und Wind, 12 Knoten.\n";
        let text = line.repeat(3 * CHUNK / line.len());
        let (one, two) = text.split_at(text.floor_char_boundary(text.len() / 3 + 1));
        let files = [folder.file("one.txt", one), folder.file("two.txt", two)];
        let split = train_bytes(text.len() as u64, 0.1);
        let (train, validation) = read(&files, split).unwrap();
        assert!(train.len() > 2);
        let expected = cut(&text, 0.1);
        assert_eq!((train.concat().as_str(), validation.concat().as_str()), expected);
        assert!(train[..train.len() - 1].iter().all(|piece| piece.ends_with('\n')));
    }

    #[test]
    fn invalid_utf8_is_reported_with_its_offset() {
        let folder = TempDir::new();
        for (bytes, place) in [(&b"abc\xffd"[..], 3), (b"ab\xc3", 2), (b"\xe2\x82", 0)] {
            let path = folder.file("bad.txt", bytes);
            match read(&[path], 0) {
                Err(DataError::NotUtf8 { byte, .. }) => assert_eq!(byte, place),
                other => panic!("{other:?}"),
            }
        }
        let mut long = "x".repeat(2 * CHUNK).into_bytes();
        long[CHUNK + 5] = 0xff;
        let error = read(&[folder.file("long.txt", &long)], 0).unwrap_err().to_string();
        assert!(error.ends_with(&format!("offset {}", CHUNK + 5)), "{error}");
    }

    proptest! {
        #[test]
        fn the_split_equals_that_in_memory(text in "[aé\u{1f6a3}\n]{0,40}", share in 0.0..0.9) {
            let folder = TempDir::new();
            let path = folder.file("text", &text);
            let (train, validation) = read(&[path], train_bytes(text.len() as u64, share)).unwrap();
            let expected = cut(&text, share);
            prop_assert_eq!(train.concat(), expected.0);
            prop_assert_eq!(validation.concat(), expected.1);
        }
    }
}
