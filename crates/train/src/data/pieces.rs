//! Text files as one text, in pieces that a tokenizer can take one by one: texts may be larger than
//! memory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::{DataError, Result};

/// How much is read at once.
const CHUNK: usize = 1 << 20;
/// A piece is cut anywhere at last, if there is no better place.
const LONGEST: usize = 16 << 20;

/// What a piece of text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// To learn from.
    Train,
    /// To see what was learned.
    Validation,
}

/// How many bytes of a text are for training, if this share is for validation. The first character
/// that is not whole there is for validation.
pub fn train_bytes(total: u64, validation: f64) -> u64 {
    (total as f64 * (1.0 - validation)) as u64
}

/// Cuts a text as [`each`] would.
pub fn cut(text: &str, validation: f64) -> (&str, &str) {
    let at = train_bytes(text.len() as u64, validation) as usize;
    text.split_at(text.floor_char_boundary(at))
}

/// Gives the text of files, one behind the other, piece by piece. Pieces end where words do, but
/// for the one at byte `split`, where validation begins.
pub fn each(
    files: &[PathBuf],
    split: u64,
    mut take: impl FnMut(Part, &str) -> Result<()>,
) -> Result<()> {
    let mut text = Cutter { text: String::new(), before: 0, split };
    for path in files {
        let mut file = File::open(path).map_err(DataError::io("open", path))?;
        let (mut bytes, mut done) = (Vec::new(), 0);
        loop {
            let more = file.by_ref().take(CHUNK as u64).read_to_end(&mut bytes);
            let ended = more.map_err(DataError::io("read", path))? == 0;
            let whole = utf8(&bytes, ended).map_err(|at| not_utf8(path, done + at as u64))?;
            text.text.push_str(whole);
            let length = whole.len();
            done += length as u64;
            bytes.drain(..length);
            text.cut(&mut take)?;
            if ended {
                break;
            }
        }
    }
    text.rest(&mut take)
}

fn not_utf8(path: &Path, byte: u64) -> DataError {
    DataError::NotUtf8 { path: path.to_owned(), byte }
}

/// The text that bytes begin with; at the end of a file that must be all of them. Else where they
/// are wrong.
fn utf8(bytes: &[u8], ended: bool) -> std::result::Result<&str, usize> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if ended || error.error_len().is_some() => Err(error.valid_up_to()),
        Err(error) => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).map_err(|e| e.valid_up_to())
        }
    }
}

/// Text that has come, and where it is in the whole.
struct Cutter {
    text: String,
    before: u64,
    split: u64,
}

impl Cutter {
    /// Gives what can be given so far.
    fn cut(&mut self, take: &mut impl FnMut(Part, &str) -> Result<()>) -> Result<()> {
        if self.part() == Part::Train && self.before + self.text.len() as u64 >= self.split {
            let at = self.text.floor_char_boundary((self.split - self.before) as usize);
            self.give(Part::Train, at, take)?;
            self.split = self.before;
        }
        let at = match safe_cut(&self.text) {
            None if self.text.len() >= LONGEST => self.text.len(),
            at => at.unwrap_or(0),
        };
        self.give(self.part(), at, take)
    }

    /// Gives all there is.
    fn rest(&mut self, take: &mut impl FnMut(Part, &str) -> Result<()>) -> Result<()> {
        self.give(self.part(), self.text.len(), take)
    }

    fn part(&self) -> Part {
        if self.before < self.split { Part::Train } else { Part::Validation }
    }

    fn give(
        &mut self,
        part: Part,
        bytes: usize,
        take: &mut impl FnMut(Part, &str) -> Result<()>,
    ) -> Result<()> {
        if bytes > 0 {
            take(part, &self.text[..bytes])?;
            self.text.drain(..bytes);
            self.before += bytes as u64;
        }
        Ok(())
    }
}

/// The last place of a text where the tokens before and behind are the same as in the whole: behind
/// a line's end without other white space around it. All known patterns end a word there, and look
/// no further.
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
    use crate::data::testing::Folder;

    fn read(files: &[PathBuf], split: u64) -> Result<(Vec<String>, Vec<String>)> {
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        each(files, split, |part, text| {
            let all = if part == Part::Train { &mut train } else { &mut validation };
            all.push(text.to_owned());
            Ok(())
        })?;
        Ok((train, validation))
    }

    #[test]
    fn cuts_where_no_word_is_harmed() {
        assert_eq!(safe_cut("a\nb"), Some(2));
        assert_eq!(safe_cut("a\nb\nc\n"), Some(4));
        for text in ["", "a", "\n", "a\n", "\na", "a\n\nb", "a \nb", "a\n b", "é\u{a0}\nb"] {
            assert_eq!(safe_cut(text), None, "{text:?}");
        }
    }

    #[test]
    fn long_texts_come_in_pieces_and_nothing_is_lost() {
        let folder = Folder::new();
        let line = "Größe und Wind, 12 Knoten.\n";
        let text = line.repeat(3 * CHUNK / line.len());
        let (one, two) = text.split_at(text.floor_char_boundary(text.len() / 3 + 1));
        let files = [folder.file("one.txt", one), folder.file("two.txt", two)];
        let split = train_bytes(text.len() as u64, 0.1);
        let (train, validation) = read(&files, split).unwrap();
        assert!(train.len() > 2);
        let whole = cut(&text, 0.1);
        assert_eq!((train.concat().as_str(), validation.concat().as_str()), whole);
        assert!(train[..train.len() - 1].iter().all(|piece| piece.ends_with('\n')));
    }

    #[test]
    fn what_is_no_text_is_named_with_its_place() {
        let folder = Folder::new();
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
        assert!(error.ends_with(&format!("byte {}", CHUNK + 5)), "{error}");
    }

    proptest! {
        #[test]
        fn the_split_is_where_it_would_be_in_memory(text in "[aé\u{1f6a3}\n]{0,40}", share in 0.0..0.9) {
            let folder = Folder::new();
            let path = folder.file("text", &text);
            let (train, validation) = read(&[path], train_bytes(text.len() as u64, share)).unwrap();
            let whole = cut(&text, share);
            prop_assert_eq!(train.concat(), whole.0);
            prop_assert_eq!(validation.concat(), whole.1);
        }
    }
}
