//! Trains byte-level BPE: counts the words of a text, then merges the most frequent pair of tokens until the
//! vocabulary has its size. No I/O.
//!
//! Merges are applied to the distinct words, each weighted by its count. Pair counts are updated only in the words
//! that contain the merged pair, and a heap yields the next pair: training takes seconds where recounting every
//! pair after every merge would take hours.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use super::super::error::Result;
use super::super::pre_tokenizer::PreTokenizer;
use super::file;

/// The end-of-text token, as in GPT-2. It has id 0.
const END_OF_TEXT: &str = "<|endoftext|>";
/// Smallest vocabulary: all bytes and the end-of-text token.
pub const MIN_VOCAB: usize = 257;
/// Pairs that occur less often are not merged: a token that occurs once cannot be learned.
const MIN_COUNT: u64 = 2;
/// Longer words are counted in pieces: merges within a word of megabytes (base64) would take quadratic time.
const MAX_WORD: usize = 256;
/// Memory for distinct words; beyond it, rare words are dropped.
const MAX_WORDS_BYTES: usize = 256 << 20;
/// Approximate memory of a distinct word without its bytes.
const WORD_OVERHEAD: usize = 64;

type Pair = (u32, u32);

/// Words of a text with their counts.
#[derive(Debug)]
pub struct WordCounts {
    counts: HashMap<Box<[u8]>, u64>,
    bytes: usize,
    max_bytes: usize,
}

impl Default for WordCounts {
    fn default() -> Self {
        Self { counts: HashMap::new(), bytes: 0, max_bytes: MAX_WORDS_BYTES }
    }
}

impl WordCounts {
    /// Counts the words of a text that ends at a word boundary.
    pub fn add(&mut self, text: &str) {
        let words = text.split(END_OF_TEXT).flat_map(|part| PreTokenizer::Gpt2.of(part));
        for word in words.flat_map(|word| word.as_bytes().chunks(MAX_WORD)) {
            match self.counts.get_mut(word) {
                Some(count) => *count += 1,
                None => {
                    self.counts.insert(word.into(), 1);
                    self.bytes += word.len() + WORD_OVERHEAD;
                }
            }
        }
        self.drop_rare();
    }

    /// Drops the rarest words until half of the memory is free.
    fn drop_rare(&mut self) {
        if self.bytes <= self.max_bytes {
            return;
        }
        let mut rarest = 1;
        while self.bytes > self.max_bytes / 2 {
            self.counts.retain(|_, count| *count > rarest);
            self.bytes = self.counts.keys().map(|word| word.len() + WORD_OVERHEAD).sum();
            rarest *= 2;
        }
    }

    /// Trains a vocabulary of `vocab_size` tokens, or fewer if no pair is left that occurs twice. Returns a
    /// `tokenizer.json`. `progress` is called after every merge with the number of merges done and in total.
    /// Ties are broken by token ids, so the result depends on nothing but the text.
    pub fn train(
        self,
        vocab_size: usize,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let letters = file::byte_alphabet();
        let mut vocab: Vec<String> = vec![END_OF_TEXT.to_owned()];
        let mut alphabet: Vec<(char, u8)> = letters.into_iter().collect();
        alphabet.sort_unstable();
        vocab.extend(alphabet.iter().map(|(letter, _)| letter.to_string()));
        let mut token_of_byte = [0; 256];
        for (token, (_, byte)) in (1..).zip(&alphabet) {
            token_of_byte[usize::from(*byte)] = token;
        }
        let word = |(bytes, count): (Box<[u8]>, u64)| Word {
            tokens: bytes.iter().map(|byte| token_of_byte[usize::from(*byte)]).collect(),
            count,
        };
        let mut pairs = PairCounts::new(self.counts.into_iter().map(word).collect());
        let mut ids: HashMap<String, u32> = vocab.iter().cloned().zip(0..).collect();
        let (mut merges, mut merged) = (Vec::new(), BTreeSet::new());
        let total = vocab_size.saturating_sub(vocab.len());
        while vocab.len() < vocab_size
            && let Some(pair) = pairs.most_frequent()
        {
            let [left, right] = [pair.0, pair.1].map(|token| vocab[token as usize].clone());
            let text = format!("{left}{right}");
            // Different pairs may form the same token: a+bc and ab+c.
            let token = *ids.entry(text.clone()).or_insert_with(|| {
                vocab.push(text);
                (vocab.len() - 1) as u32
            });
            if merged.insert(pair) {
                merges.push(format!("{left} {right}"));
            }
            pairs.merge(pair, token);
            progress(total - (vocab_size - vocab.len()), total)?;
        }
        Ok(file::write(&vocab, &merges))
    }
}

/// A distinct word.
struct Word {
    tokens: Vec<u32>,
    count: u64,
}

impl Word {
    fn pairs(&self) -> impl Iterator<Item = Pair> {
        self.tokens.array_windows().map(|[left, right]| (*left, *right))
    }

    /// Merges a pair from the left. Returns whether it occurred.
    fn merge(&mut self, pair: Pair, token: u32) -> bool {
        let (mut read, mut written) = (0, 0);
        while read < self.tokens.len() {
            let is_pair = self.tokens[read..].starts_with(&[pair.0, pair.1]);
            self.tokens[written] = if is_pair { token } else { self.tokens[read] };
            read += if is_pair { 2 } else { 1 };
            written += 1;
        }
        self.tokens.truncate(written);
        written < read
    }
}

/// Occurrences of a pair.
#[derive(Default)]
struct PairCount {
    count: u64,
    /// Indices of words that contain it, or did; possibly repeated.
    words: Vec<u32>,
}

/// Words, and the counts of the pairs of tokens in them.
struct PairCounts {
    words: Vec<Word>,
    counts: HashMap<Pair, PairCount>,
    /// By count, then the smallest pair. Entries may be out of date.
    heap: BinaryHeap<(u64, Reverse<Pair>)>,
}

impl PairCounts {
    fn new(words: Vec<Word>) -> Self {
        let mut pairs = Self { words, counts: HashMap::new(), heap: BinaryHeap::new() };
        for (index, word) in (0..).zip(&pairs.words) {
            for pair in word.pairs() {
                let entry = pairs.counts.entry(pair).or_default();
                entry.count += word.count;
                if entry.words.last() != Some(&index) {
                    entry.words.push(index);
                }
            }
        }
        pairs.heap = pairs.counts.iter().map(|(pair, at)| (at.count, Reverse(*pair))).collect();
        pairs
    }

    /// The most frequent pair, removed from the heap; of equally frequent ones the smallest.
    fn most_frequent(&mut self) -> Option<Pair> {
        while let Some((count, Reverse(pair))) = self.heap.pop() {
            let now = self.counts.get(&pair).map_or(0, |found| found.count);
            if now < MIN_COUNT {
                continue;
            }
            if now == count {
                return Some(pair);
            }
            self.heap.push((now, Reverse(pair)));
        }
        None
    }

    /// Replaces a pair by a token in all words.
    fn merge(&mut self, pair: Pair, token: u32) {
        let mut words = self.counts.remove(&pair).unwrap_or_default().words;
        words.sort_unstable();
        words.dedup();
        let mut grown = BTreeSet::new();
        for index in words {
            let word = &mut self.words[index as usize];
            let before: Vec<Pair> = word.pairs().collect();
            if !word.merge(pair, token) {
                continue;
            }
            for pair in before {
                if let Some(found) = self.counts.get_mut(&pair) {
                    found.count -= word.count;
                }
            }
            for pair in word.pairs() {
                let found = self.counts.entry(pair).or_default();
                found.count += word.count;
                if pair.0 == token || pair.1 == token {
                    found.words.push(index);
                    grown.insert(pair);
                }
            }
        }
        // Counts of other pairs have only decreased, which `most_frequent` notices.
        for pair in grown {
            self.heap.push((self.counts[&pair].count, Reverse(pair)));
        }
    }
}

#[cfg(test)]
mod tests;
