//! Trained tokenizers, against a training that recounts all pairs after every merge.

use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::data::{DataError, Tokenizer};

fn train(text: &str, vocab_size: usize) -> Vec<u8> {
    let mut words = WordCounts::default();
    words.add(text);
    words.train(vocab_size, &mut |_, _| Ok(())).unwrap()
}

fn tokenizer(text: &str, vocab_size: usize) -> Tokenizer {
    Tokenizer::from_bytes(&train(text, vocab_size), Path::new("tokenizer.json")).unwrap()
}

fn merges(file: &[u8]) -> Vec<String> {
    let file: Value = serde_json::from_slice(file).unwrap();
    let merges = file["model"]["merges"].as_array().unwrap();
    merges.iter().map(|merge| merge.as_str().unwrap().to_owned()).collect()
}

/// Merges of printable ASCII text, with all pairs recounted after every merge.
fn recounted_merges(text: &str, vocab_size: usize) -> Vec<String> {
    let mut letters: Vec<(char, u8)> = file::byte_alphabet().into_iter().collect();
    letters.sort_unstable();
    let letter = |byte: u8| letters.iter().find(|(_, b)| *b == byte).unwrap().0.to_string();
    let mut vocab: Vec<String> = letters.iter().map(|(letter, _)| letter.to_string()).collect();
    let mut words: Vec<Vec<String>> =
        PreTokenizer::Gpt2.of(text).map(|word| word.bytes().map(letter).collect()).collect();
    let mut merges = Vec::new();
    while vocab.len() + 1 < vocab_size {
        let ids: HashMap<&String, usize> = vocab.iter().zip(0..).collect();
        let mut counts: HashMap<(usize, usize), u64> = HashMap::new();
        for [left, right] in words.iter().flat_map(|word| word.array_windows()) {
            *counts.entry((ids[left], ids[right])).or_default() += 1;
        }
        let best = counts.into_iter().max_by_key(|(pair, count)| (*count, Reverse(*pair)));
        let Some(((left, right), 2..)) = best else { break };
        let [left, right] = [left, right].map(|id| vocab[id].clone());
        for word in &mut words {
            let mut at = 0;
            while at + 1 < word.len() {
                if word[at] == left && word[at + 1] == right {
                    word[at].push_str(&right);
                    word.remove(at + 1);
                }
                at += 1;
            }
        }
        let (merge, token) = (format!("{left} {right}"), format!("{left}{right}"));
        if !merges.contains(&merge) {
            merges.push(merge);
        }
        if !vocab.contains(&token) {
            vocab.push(token);
        }
    }
    merges
}

#[test]
fn the_most_frequent_pairs_are_merged_first_and_ties_by_id() {
    let file = train("low lower lowest newest newest\n", MIN_VOCAB + 6);
    assert_eq!(merges(&file), ["w e", "l o", "s t", "we st", "e west", "n ewest"]);
}

#[test]
fn the_vocabulary_has_the_requested_size_unless_the_text_is_too_small() {
    let text = "The wind came from the north-west. The crew's oars were ready.\n".repeat(3);
    assert_eq!(tokenizer(&text, 280).vocab_size(), 280);
    let all = tokenizer(&text, 4096);
    assert!((281..400).contains(&all.vocab_size()), "{}", all.vocab_size());
    assert_eq!(all.encode(" wind").unwrap().len(), 1);
    assert_eq!(tokenizer("ab", 4096).vocab_size(), MIN_VOCAB);
    let end_of_text = all.end_of_text();
    assert_eq!((end_of_text, all.encode("<|endoftext|>").unwrap()), (Some(0), vec![0]));
}

#[test]
fn end_of_text_tokens_are_not_counted_as_words() {
    let file = train(&"a<|endoftext|>\n".repeat(9), 300);
    assert_eq!(merges(&file), Vec::<String>::new());
}

#[test]
fn rare_words_are_dropped_when_memory_is_full() {
    let mut words = WordCounts { max_bytes: 40 * WORD_OVERHEAD, ..WordCounts::default() };
    for number in 0..1000 {
        words.add(&format!("common x{}\n", "y".repeat(number % 200)));
        assert!(words.bytes <= words.max_bytes, "{} bytes", words.bytes);
    }
    let file = words.train(MIN_VOCAB + 5, &mut |_, _| Ok(())).unwrap();
    assert!(merges(&file).iter().any(|merge| merge.contains("co")), "{:?}", merges(&file));
}

#[test]
fn long_words_are_counted_in_pieces() {
    let mut words = WordCounts::default();
    words.add(&"z".repeat(1 << 20));
    assert_eq!(words.counts.len(), 1);
    assert_eq!(words.counts[&[b'z'; MAX_WORD][..]], (1 << 20) / MAX_WORD as u64);
}

#[test]
fn progress_is_reported_and_may_interrupt() {
    let mut words = WordCounts::default();
    words.add("the wind, the wind, the wind\n");
    let mut seen = Vec::new();
    let result = words.train(MIN_VOCAB + 4, &mut |done, total| {
        seen.push((done, total));
        if done == 3 { Err(DataError::Interrupted) } else { Ok(()) }
    });
    assert!(matches!(result, Err(DataError::Interrupted)));
    assert_eq!(seen, [(1, 4), (2, 4), (3, 4)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn training_equals_recounting(text in "[ab ]{0,60}[a-d\\-=]{0,30}[ -~\n]{0,60}") {
        let text = text.repeat(2);
        prop_assert_eq!(merges(&train(&text, 280)), recounted_merges(&text, 280));
    }

    #[test]
    fn decoding_restores_the_text(trained in "\\PC{0,80}", text in "[ -~\n\t]{0,40}\\PC{0,40}") {
        let tokenizer = tokenizer(&trained.repeat(2), 400);
        for text in [&text, &trained] {
            let tokens = tokenizer.encode(text).unwrap();
            prop_assert_eq!(&tokenizer.decode(&tokens).unwrap(), text);
        }
    }
}
