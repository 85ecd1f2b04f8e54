//! Splits bytes that arrive in any pieces into lines of bounded length.

/// Longest line; longer ones are skipped. A record that names a million ranks is shorter.
const MAX_LINE: usize = 16 << 20;

/// The incomplete last line. No I/O.
#[derive(Debug, Default)]
pub struct LineSplitter {
    partial: Vec<u8>,
    /// Whether the rest of the line is skipped.
    skipping: bool,
}

impl LineSplitter {
    /// Appends complete lines, without line breaks, to `lines`. Returns the number of lines that are
    /// skipped because they are too long.
    pub fn push(&mut self, bytes: &[u8], lines: &mut Vec<Vec<u8>>) -> usize {
        let mut skipped = 0;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = piece.strip_suffix(b"\n");
            let content = line.unwrap_or(piece);
            if self.skipping || self.partial.len() + content.len() > MAX_LINE {
                skipped += usize::from(!std::mem::replace(&mut self.skipping, true));
                self.partial = Vec::new();
            } else {
                self.partial.extend(content);
            }
            if line.is_some() && !std::mem::take(&mut self.skipping) {
                lines.push(std::mem::take(&mut self.partial));
            }
        }
        skipped
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_do_not_change_the_lines(
            text in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            piece in 1usize..20,
        ) {
            let mut lines = Vec::new();
            let mut splitter = LineSplitter::default();
            let skipped: usize = text.chunks(piece).map(|part| splitter.push(part, &mut lines)).sum();
            let mut expected: Vec<Vec<u8>> =
                text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            expected.pop();
            prop_assert_eq!((lines, skipped), (expected, 0));
        }
    }

    #[test]
    fn lines_that_are_too_long_are_skipped_and_counted() {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        let long = vec![b'x'; MAX_LINE];
        assert_eq!(splitter.push(&long, &mut lines), 0);
        assert_eq!(splitter.push(b"x", &mut lines), 1);
        assert_eq!(splitter.push(&long, &mut lines), 0);
        assert_eq!(splitter.push(b"\nshort\n", &mut lines), 0);
        assert_eq!(lines, [b"short"]);
    }
}
