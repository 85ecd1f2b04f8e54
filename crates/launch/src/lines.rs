//! Turns what ranks write into lines, and folds the same line of many ranks into one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A line longer than this is cut: a program that never ends its line must not fill memory.
const MAX_LINE: usize = 64 * 1024;

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Splitter {
    rest: Vec<u8>,
}

impl Splitter {
    /// The lines that end in `bytes`, without their ends.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|&b| b == b'\n') {
            self.rest.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.rest.len() >= MAX_LINE {
                lines.extend(self.finish());
            }
        }
        lines
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// The line.
    pub text: String,
    /// Whether it came from standard error.
    pub error: bool,
    /// The ranks, in the order in which they wrote it.
    pub ranks: Vec<u32>,
}

/// Holds lines back for a moment and folds the same line of several ranks into one. The lines of
/// one rank keep their order.
#[derive(Debug)]
pub struct Folder {
    window: Duration,
    waiting: VecDeque<(Instant, Folded)>,
}

impl Folder {
    /// Folds what comes within `window`.
    pub fn new(window: Duration) -> Self {
        Self { window, waiting: VecDeque::new() }
    }

    /// Takes a line in.
    pub fn push(&mut self, rank: u32, error: bool, text: String, now: Instant) {
        // Joining an earlier line is allowed only if the rank has written nothing since.
        let after_own = self.waiting.iter().rposition(|(_, l)| l.ranks.contains(&rank));
        let from = after_own.map_or(0, |i| i + 1);
        let same = self.waiting.iter_mut().skip(from).find(|(_, l)| l.error == error && l.text == text);
        match same {
            Some((_, line)) => line.ranks.push(rank),
            None => self.waiting.push_back((now, Folded { text, error, ranks: vec![rank] })),
        }
    }

    /// The lines whose time has come.
    pub fn ready(&mut self, now: Instant) -> Vec<Folded> {
        let due = |since: &Instant| now.saturating_duration_since(*since) >= self.window;
        let count = self.waiting.iter().take_while(|(since, _)| due(since)).count();
        self.waiting.drain(..count).map(|(_, line)| line).collect()
    }

    /// All that is left.
    pub fn finish(&mut self) -> Vec<Folded> {
        self.waiting.drain(..).map(|(_, line)| line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_line_is_never_lost() {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.push(b"a\nb"), ["a"]);
        assert_eq!(splitter.push(b"c\r\nd"), ["bc"]);
        assert_eq!(splitter.finish().as_deref(), Some("d"));
        assert_eq!(splitter.finish(), None);
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let mut splitter = Splitter::default();
        let lines = splitter.push(&vec![b'x'; MAX_LINE * 2 + 1]);
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
            folder.push(rank, false, "hello".to_owned(), now);
            folder.push(rank, false, format!("rank {rank}"), now);
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
        folder.push(0, false, "x".to_owned(), now);
        folder.push(0, false, "x".to_owned(), now);
        assert_eq!(folder.finish().len(), 2);
    }

    proptest! {
        #[test]
        fn each_rank_keeps_its_lines_in_order(writes in proptest::collection::vec((0u32..4, 0u8..3), 0..60)) {
            let now = Instant::now();
            let mut folder = Folder::new(Duration::ZERO);
            for (rank, text) in &writes {
                folder.push(*rank, false, text.to_string(), now);
            }
            let out = folder.finish();
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
            let mut splitter = Splitter::default();
            let mut lines: Vec<String> =
                text.as_bytes().chunks(cut).flat_map(|c| splitter.push(c)).collect();
            lines.extend(splitter.finish());
            let whole: Vec<&str> = text.lines().collect();
            prop_assert_eq!(lines, whole);
        }
    }
}
