//! Splits bytes that arrive in any pieces into lines of bounded length.

/// The incomplete last line of at most `MAX` bytes. No I/O.
#[derive(Debug, Default)]
pub struct LineSplitter<const MAX: usize> {
    partial: Vec<u8>,
    /// Whether the rest of the line is skipped.
    skipping: bool,
}

impl<const MAX: usize> LineSplitter<MAX> {
    /// Passes on each line, without its line break, and whether it is complete: the rest of a line that is
    /// too long is skipped.
    pub fn push(&mut self, bytes: &[u8], mut handle: impl FnMut(&[u8], bool)) {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if !self.skipping && self.partial.is_empty() && line.len() <= MAX {
                handle(line, true);
                continue;
            }
            self.keep(line, &mut handle);
            if !std::mem::take(&mut self.skipping) {
                handle(&self.partial, true);
            }
            self.partial.clear();
        }
        self.keep(rest, &mut handle);
    }

    /// Passes on the line without a line break at the end, if there is one.
    pub fn finish(&mut self, mut handle: impl FnMut(&[u8], bool)) {
        let Self { partial, .. } = std::mem::take(self);
        if !partial.is_empty() {
            handle(&partial, false);
        }
    }

    fn keep(&mut self, part: &[u8], handle: &mut impl FnMut(&[u8], bool)) {
        if self.skipping {
            return;
        }
        let room = MAX - self.partial.len();
        self.partial.extend(&part[..part.len().min(room)]);
        if part.len() > room {
            self.skipping = true;
            handle(&std::mem::take(&mut self.partial), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1 << 10;

    /// The complete lines, and the number of others.
    fn split(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, usize) {
        let mut splitter = LineSplitter::<MAX>::default();
        let (mut lines, mut cut) = (Vec::new(), 0);
        for piece in pieces {
            splitter.push(piece, |line, is_complete| match is_complete {
                true => lines.push(line.to_vec()),
                false => cut += 1,
            });
        }
        (lines, cut)
    }

    proptest! {
        #[test]
        fn pieces_do_not_change_the_lines(
            text in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            piece in 1usize..20,
        ) {
            let mut expected: Vec<Vec<u8>> =
                text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            expected.pop();
            let pieces: Vec<&[u8]> = text.chunks(piece).collect();
            prop_assert_eq!(split(&pieces), (expected, 0));
        }
    }

    #[test]
    fn lines_that_are_too_long_are_skipped_and_counted() {
        let long = vec![b'x'; MAX];
        assert_eq!(split(&[&long]), (vec![], 0));
        assert_eq!(split(&[&long, b"x"]), (vec![], 1));
        assert_eq!(split(&[&long, b"x", &long]), (vec![], 1));
        let (lines, cut) = split(&[&long, b"x", &long, b"\nshort\n"]);
        assert_eq!((lines, cut), (vec![b"short".to_vec()], 1));
        assert_eq!(split(&[&[&long[..], b"x\n"].concat()]), (vec![], 1));
    }

    #[test]
    fn the_end_is_a_line_that_is_cut_off() {
        let mut splitter = LineSplitter::<MAX>::default();
        splitter.push(b"a\nb", |_, _| {});
        let mut found = Vec::new();
        splitter.finish(|line, is_complete| found.push((line.to_vec(), is_complete)));
        splitter.finish(|_, _| panic!("nothing is left"));
        assert_eq!(found, [(b"b".to_vec(), false)]);
    }
}
