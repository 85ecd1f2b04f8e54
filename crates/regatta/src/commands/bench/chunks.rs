//! Text that goes from rank 0 to the process that started it, line by line: a line that is too long
//! would be cut on its way, so a text goes in numbered pieces. No I/O.

use std::fmt;

/// Bytes of a piece: with what is before it, well below what the launcher takes for one line.
const MOST: usize = 32 << 10;

/// Cuts a text, which has no line ends, into pieces: `0/2 ...` and `1/2 ...`.
pub fn pieces(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, more) = rest.split_at(rest.floor_char_boundary(MOST));
        parts.push(part);
        if more.is_empty() {
            break;
        }
        rest = more;
    }
    let of = parts.len();
    parts.iter().enumerate().map(|(number, part)| format!("{number}/{of} {part}")).collect()
}

/// Joins pieces to texts again.
#[derive(Debug, Default)]
pub struct Joining {
    text: String,
    /// The number of the next piece, and how many there are, of a text that has begun.
    next: Option<(usize, usize)>,
}

/// Why pieces are no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Torn {
    /// It does not begin with its number.
    Unnumbered,
    /// Another piece was due than this one.
    Missing { due: usize, came: usize, of: usize },
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnumbered => write!(f, "a piece of it has no number"),
            Self::Missing { due, came, of } => {
                write!(f, "piece {came} of {of} came where piece {due} was due")
            }
        }
    }
}

impl Joining {
    /// Takes the next piece: the text, if this was its last one. After an error the next text of
    /// which no piece was refused is taken as if nothing had been before.
    pub fn push(&mut self, piece: &str) -> Result<Option<String>, Torn> {
        let due = self.next.take();
        let (number, of, part) = numbered(piece).ok_or(Torn::Unnumbered)?;
        if due.unwrap_or((0, of)) != (number, of) {
            let torn = Torn::Missing { due: due.map_or(0, |(next, _)| next), came: number, of };
            if number == 0 && of > 1 {
                // What is torn is the text before.
                self.begin(part, of);
            }
            return Err(torn);
        }
        if number == 0 {
            self.text.clear();
        }
        self.text.push_str(part);
        if number + 1 == of {
            return Ok(Some(std::mem::take(&mut self.text)));
        }
        self.next = Some((number + 1, of));
        Ok(None)
    }

    fn begin(&mut self, part: &str, of: usize) {
        self.text = part.to_owned();
        self.next = Some((1, of));
    }
}

/// A piece's number, how many there are, and its part of the text.
fn numbered(piece: &str) -> Option<(usize, usize, &str)> {
    let (numbers, part) = piece.split_once(' ')?;
    let (number, of) = numbers.split_once('/')?;
    let (number, of) = (number.parse().ok()?, of.parse().ok()?);
    (number < of).then_some((number, of, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn long() -> Vec<String> {
        let all = pieces(&"€".repeat(MOST));
        assert!(all.len() >= 3);
        all
    }

    /// All texts and errors that come of pieces.
    fn joined<'a>(all: impl IntoIterator<Item = &'a String>) -> Vec<Result<String, Torn>> {
        let mut joining = Joining::default();
        all.into_iter().filter_map(|piece| joining.push(piece).transpose()).collect()
    }

    #[test]
    fn a_missing_piece_is_missed_and_the_next_text_is_whole() {
        let (long, short) = (long(), pieces("short"));
        for left_out in 0..long.len() {
            let some = long.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, p)| p);
            let found = joined(some.chain(&long).chain(&short));
            assert!(found[0].is_err(), "{left_out}");
            assert_eq!(found.last(), Some(&Ok("short".to_owned())));
            let whole = found.iter().filter(|one| **one == Ok("€".repeat(MOST))).count();
            assert_eq!(whole, 1, "{left_out}");
        }
    }

    #[test]
    fn what_comes_out_of_order_is_refused() {
        let long = long();
        assert!(joined(long.iter().rev()).iter().all(Result::is_err));
        assert!(joined([&long[0], &long[0]]).iter().all(Result::is_err));
        for piece in ["", "0", "0/1", "1/1 x", "-1/1 x", "0/0 ", "{\"end\": 1}", "0/x 1"] {
            assert_eq!(Joining::default().push(piece), Err(Torn::Unnumbered), "{piece}");
        }
    }

    proptest! {
        #[test]
        fn any_texts_come_together_again(
            texts in proptest::collection::vec(("\\PC{0,40}", 0usize..4000), 1..4)
        ) {
            let texts: Vec<String> = texts.into_iter().map(|(t, times)| t.repeat(times)).collect();
            let all: Vec<String> = texts.iter().flat_map(|text| pieces(text)).collect();
            prop_assert!(all.iter().all(|piece| piece.len() < MOST + 32));
            let texts: Vec<Result<String, Torn>> = texts.into_iter().map(Ok).collect();
            prop_assert_eq!(joined(&all), texts);
        }

        #[test]
        fn any_pieces_are_taken_or_refused(all in proptest::collection::vec("\\PC{0,12}|[0-3]/[0-3] x", 0..9)) {
            joined(&all);
        }
    }
}
