//! Turns what ranks write into lines, and folds the same line of many ranks into one.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A line longer than this is cut: a program that never ends its line must not fill memory.
const MAX_LINE: usize = 64 * 1024;

/// How often a line that is written over and over, as progress bars are, is shown.
const REDRAWN: Duration = Duration::from_secs(1);

/// Cuts a stream of bytes into lines. What a carriage return lets the next text write over is
/// shown now and then, as a line of its own; of a whole line what a terminal would leave is shown.
#[derive(Debug, Default)]
pub struct Splitter {
    rest: Vec<u8>,
    redrawn: Option<Instant>,
}

impl Splitter {
    /// The lines that end in `bytes`, without their ends.
    pub fn push(&mut self, bytes: &[u8], now: Instant) -> Vec<String> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|&b| b == b'\n' || b == b'\r') {
            // Whether a return is one before a line's end is known only from what follows it.
            if self.rest.ends_with(b"\r") && piece != b"\n" && piece != b"\r" {
                lines.extend(self.written_over(now));
            }
            self.rest.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.rest.len() >= MAX_LINE {
                lines.extend(self.finish());
            }
        }
        lines
    }

    /// The line that is about to be written over, if it is time to show one.
    fn written_over(&mut self, now: Instant) -> Option<String> {
        let shown = self.redrawn.is_some_and(|t| now.saturating_duration_since(t) < REDRAWN);
        let text = self.finish().filter(|text| !shown && !text.is_empty())?;
        self.redrawn = Some(now);
        Some(text)
    }

    /// What is left at the end of the stream: a last line without an end is a line too.
    pub fn finish(&mut self) -> Option<String> {
        if self.rest.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(&self.rest).into_owned();
        self.rest.clear();
        Some(text.trim_end_matches(['\n', '\r']).to_owned())
    }
}

/// A line and the ranks that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folded {
    /// The line.
    pub text: String,
    /// Whether it came from standard error.
    pub error: bool,
    /// The ranks, in the order in which they wrote it.
    pub ranks: Vec<u32>,
}

impl Folded {
    /// A line of one rank.
    pub fn of(rank: u32, error: bool, text: String) -> Self {
        Self { text, error, ranks: vec![rank] }
    }
}

/// Holds lines back for a moment and folds the same line of several ranks into one. The lines of
/// one rank keep their order.
#[derive(Debug)]
pub struct Folder {
    window: Duration,
    waiting: VecDeque<(Instant, Folded)>,
    /// How many lines have left: a line's number is its place in `waiting` plus this.
    gone: usize,
    /// The number of each rank's last line.
    last: HashMap<u32, usize>,
}

/// How far ahead the same line is looked for. Ranks that do the same write the same within a few
/// lines; looking through all that waits would cost the square of a flood.
const LOOK_AHEAD: usize = 64;

impl Folder {
    /// Folds what comes within `window`.
    pub fn new(window: Duration) -> Self {
        Self { window, waiting: VecDeque::new(), gone: 0, last: HashMap::new() }
    }

    /// Takes a line in.
    pub fn push(&mut self, line: Folded, now: Instant) {
        // Joining a line is allowed only after the last one each of the ranks wrote.
        let after = |rank| self.last.get(rank).map_or(0, |&n| (n + 1).saturating_sub(self.gone));
        let first = line.ranks.iter().map(after).max().unwrap_or(0);
        let same = |l: &Folded| l.error == line.error && l.text == line.text;
        let ahead = self.waiting.iter().enumerate().skip(first).take(LOOK_AHEAD);
        let at = ahead.into_iter().find(|(_, (_, l))| same(l)).map(|(at, _)| at);
        let at = at.unwrap_or(self.waiting.len());
        self.last.extend(line.ranks.iter().map(|&rank| (rank, self.gone + at)));
        match self.waiting.get_mut(at) {
            Some((_, waiting)) => waiting.ranks.extend(line.ranks),
            None => self.waiting.push_back((now, line)),
        }
    }

    /// The lines whose time has come.
    pub fn ready(&mut self, now: Instant) -> Vec<Folded> {
        self.some_ready(now, usize::MAX)
    }

    /// The first of the lines whose time has come, at most so many: for one who has other things to
    /// do between them.
    pub fn some_ready(&mut self, now: Instant, most: usize) -> Vec<Folded> {
        let due = |since: &Instant| now.saturating_duration_since(*since) >= self.window;
        let first = self.waiting.iter().take(most);
        let count = first.take_while(|(since, _)| due(since)).count();
        self.leave(count)
    }

    /// All that is left.
    pub fn finish(&mut self) -> Vec<Folded> {
        self.leave(self.waiting.len())
    }

    fn leave(&mut self, count: usize) -> Vec<Folded> {
        self.gone += count;
        self.waiting.drain(..count).map(|(_, line)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_line_is_never_lost() {
        let (mut splitter, now) = (Splitter::default(), Instant::now());
        assert_eq!(splitter.push(b"a\nb", now), ["a"]);
        assert_eq!(splitter.push(b"c\r\nd", now), ["bc"]);
        assert_eq!(splitter.finish().as_deref(), Some("d"));
        assert_eq!(splitter.finish(), None);
    }

    #[test]
    fn a_progress_bar_is_shown_now_and_then_and_at_its_end() {
        let (mut splitter, now) = (Splitter::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        assert!(splitter.push(b"\r1%", at(0)).is_empty());
        assert_eq!(splitter.push(b"\r2%", at(100)), ["1%"]);
        assert!(splitter.push(b"\r3%\r4%\r", at(200)).is_empty());
        assert_eq!(splitter.push(b"5%", at(1100)), ["4%"]);
        assert_eq!(splitter.push(b"\r100%\r", at(1200)), [""; 0]);
        assert_eq!(splitter.push(b"\nnext\r\r\n", at(1200)), ["100%", "next"]);
        assert_eq!(splitter.push(b"\n", at(1200)), [""], "an empty line is one");
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut splitter = Splitter::default();
        let lines = splitter.push(&vec![b'x'; MAX_LINE * 2 + 1], Instant::now());
        assert_eq!(lines.iter().map(String::len).sum::<usize>(), MAX_LINE * 2 + 1);
    }

    fn folded(lines: &[Folded]) -> Vec<(String, Vec<u32>)> {
        lines.iter().map(|l| (l.text.clone(), l.ranks.clone())).collect()
    }

    #[test]
    fn the_same_line_of_many_ranks_is_one() {
        let now = Instant::now();
        let mut folder = Folder::new(Duration::from_millis(100));
        for rank in 0..3 {
            folder.push(Folded::of(rank, false, "hello".to_owned()), now);
            folder.push(Folded::of(rank, false, format!("rank {rank}")), now);
        }
        assert!(folder.ready(now).is_empty());
        let lines = folded(&folder.ready(now + Duration::from_millis(100)));
        assert_eq!(lines[0], ("hello".to_owned(), vec![0, 1, 2]));
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn a_rank_that_repeats_itself_is_not_folded() {
        let now = Instant::now();
        let mut folder = Folder::new(Duration::ZERO);
        folder.push(Folded::of(0, false, "x".to_owned()), now);
        folder.push(Folded::of(0, false, "x".to_owned()), now);
        assert_eq!(folder.finish().len(), 2);
    }

    proptest! {
        #[test]
        fn each_rank_keeps_its_lines_in_order(writes in proptest::collection::vec((0u32..4, 0u8..3), 0..60)) {
            let now = Instant::now();
            let mut folder = Folder::new(Duration::from_secs(3));
            let mut out = Vec::new();
            for (i, (rank, text)) in writes.iter().enumerate() {
                let later = now + Duration::from_secs(i as u64);
                folder.push(Folded::of(*rank, false, text.to_string()), later);
                out.extend(folder.ready(later));
            }
            out.extend(folder.finish());
            for rank in 0..4 {
                let wrote: Vec<String> =
                    writes.iter().filter(|(r, _)| *r == rank).map(|(_, t)| t.to_string()).collect();
                let shown: Vec<String> =
                    out.iter().filter(|l| l.ranks.contains(&rank)).map(|l| l.text.clone()).collect();
                prop_assert_eq!(wrote, shown);
            }
        }

        #[test]
        fn nothing_is_lost_however_it_is_cut(text in "[a-c\n]{0,60}", cut in 1usize..7) {
            let (mut splitter, now) = (Splitter::default(), Instant::now());
            let mut lines: Vec<String> =
                text.as_bytes().chunks(cut).flat_map(|c| splitter.push(c, now)).collect();
            lines.extend(splitter.finish());
            let whole: Vec<&str> = text.lines().collect();
            prop_assert_eq!(lines, whole);
        }
    }
}
