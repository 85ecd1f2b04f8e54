//! Token files, valid and damaged.

use proptest::prelude::*;

use super::*;
use crate::testing::TempDir;

const FINGERPRINT: &str = "0123456789abcdef";

fn written(folder: &TempDir, vocabulary: usize, tokens: &[u32]) -> PathBuf {
    let path = folder.0.join("some.tokens");
    let mut writer = TokenWriter::create(&path, vocabulary, FINGERPRINT).unwrap();
    let (first, second) = tokens.split_at(tokens.len() / 3);
    writer.push(first).unwrap();
    writer.push(second).unwrap();
    assert_eq!(writer.finish().unwrap().tokens, tokens.len() as u64);
    path
}

/// The error of opening and reading the file after a change.
fn damaged(folder: &TempDir, path: &Path, change: impl Fn(&mut Vec<u8>)) -> String {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    let path = folder.file("damaged.tokens", bytes);
    let answer = TokenFile::open(&path).and_then(|file| {
        file.tokens(0..file.len(), &mut Vec::new())?;
        file.verify()
    });
    answer.unwrap_err().to_string()
}

proptest! {
    // Each case syncs the disk.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn token_files_round_trip(
        vocabulary in prop_oneof![Just(300usize), Just(1 << 16), Just(128_256)],
        tokens in prop::collection::vec(0u32..300, 0..200),
        cut in 0.0..1.0,
    ) {
        let folder = TempDir::new();
        let file = TokenFile::open(&written(&folder, vocabulary, &tokens)).unwrap();
        file.verify().unwrap();
        prop_assert_eq!(folder.names(), ["some.tokens"]);
        prop_assert_eq!(file.header().token_bytes, if vocabulary > 1 << 16 { 4 } else { 2 });
        prop_assert_eq!(file.header().fingerprint.as_deref(), Some(FINGERPRINT));
        let start = (tokens.len() as f64 * cut) as usize;
        let mut part = vec![9; 3];
        file.tokens(start as u64..file.len(), &mut part).unwrap();
        prop_assert_eq!(&part, &tokens[start..]);
        prop_assert!(file.tokens(0..file.len() + 1, &mut part).is_err());
    }

    #[test]
    fn any_flipped_bit_is_detected(at in 0usize..(128 + 40), bit in 0u8..8) {
        let folder = TempDir::new();
        let path = written(&folder, 256, &[7; 20]);
        // After the checksum of the header there is padding.
        prop_assume!(!(112..128).contains(&at));
        damaged(&folder, &path, |bytes| bytes[at] ^= 1 << bit);
    }
}

#[test]
fn each_kind_of_damage_has_its_error() {
    let folder = TempDir::new();
    let path = written(&folder, 100, &[1, 2, 3, 99]);
    let say = |change: &dyn Fn(&mut Vec<u8>), wanted: &str| {
        let error = damaged(&folder, &path, change);
        assert!(error.contains(wanted) && error.contains("damaged.tokens"), "{error}");
    };
    say(&|bytes| bytes.truncate(135), "has 135 bytes instead of 136");
    say(&|bytes| bytes.push(0), "has 137 bytes instead of 136");
    say(&|bytes| bytes.truncate(100), "has 100 bytes instead of 128");
    say(&|bytes| bytes.truncate(5), "is not a regatta token file");
    say(&|bytes| bytes.clear(), "set data.source=raw-u16:FOLDER");
    say(&|bytes| bytes[0] = b'R', "is not a regatta token file");
    say(&|bytes| bytes[8] = 2, "has token file version 2, but this regatta reads version 1");
    say(&|bytes| bytes[20] = 1, "header of");
    say(&|bytes| bytes[130] = 3, "are damaged: SHA-256");
    say(&|bytes| bytes[132] = 100, "token 100 at offset 2 of");
}

#[test]
fn special_files_are_refused_without_blocking() {
    let folder = TempDir::new();
    let fifo = folder.fifo("fifo");
    for error in [TokenFile::open(&fifo), TokenFile::open_raw_u16(&fifo, 7)].map(Result::unwrap_err)
    {
        assert!(error.to_string().contains("it is a FIFO, not a regular file"), "{error}");
    }
    let error = crate::data::Tokenizer::load(&fifo).unwrap_err().to_string();
    assert!(error.contains("it is a FIFO, not a regular file"), "{error}");
}

#[test]
fn truncating_an_open_file_is_an_error() {
    let folder = TempDir::new();
    let path = written(&folder, 100, &[5; 100_000]);
    let file = TokenFile::open(&path).unwrap();
    let cut = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(4096).unwrap();
    let error = file.tokens(90_000..90_010, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("has 4096 bytes instead of 200128"), "{error}");
}

#[test]
fn replacing_a_file_does_not_affect_its_readers() {
    let folder = TempDir::new();
    let old = TokenFile::open(&written(&folder, 100, &[5; 1000])).unwrap();
    let new = TokenFile::open(&written(&folder, 100, &[6; 10])).unwrap();
    let mut tokens = Vec::new();
    old.tokens(999..1000, &mut tokens).unwrap();
    assert_eq!((tokens[0], new.len()), (5, 10));
    old.verify().unwrap();
}

#[test]
fn an_unfinished_file_leaves_nothing() {
    let folder = TempDir::new();
    let path = folder.0.join("some.tokens");
    let mut writer = TokenWriter::create(&path, 10, FINGERPRINT).unwrap();
    writer.push(&[1, 2]).unwrap();
    let error = writer.push(&[3, 10]).unwrap_err().to_string();
    assert!(error.contains("token 10 at offset 3"), "{error}");
    drop(writer);
    assert_eq!(folder.names(), [""; 0]);
    let nowhere = folder.0.join("no/such/folder");
    assert!(TokenWriter::create(&nowhere, 10, FINGERPRINT).is_err());
}

#[test]
fn raw_tokens_are_read_on_request() {
    let folder = TempDir::new();
    let path = folder.file("train.bin", [1, 0, 80, 195]);
    let file = TokenFile::open_raw_u16(&path, 50_257).unwrap();
    let mut tokens = Vec::new();
    file.tokens(0..2, &mut tokens).unwrap();
    assert_eq!(tokens, [1, 50_000]);
    file.verify().unwrap();
    let error = TokenFile::open(&path).unwrap_err().to_string();
    assert!(error.contains("raw-u16:"), "{error}");
    let small = TokenFile::open_raw_u16(&path, 50_000).unwrap();
    assert!(small.tokens(0..2, &mut tokens).unwrap_err().to_string().contains("offset 1"));
    assert!(TokenFile::open_raw_u16(&folder.file("odd.bin", [1, 2, 3]), 9).is_err());
    assert!(TokenFile::open_raw_u16(&folder.file("none.bin", []), 9).is_err());
}

#[test]
fn digests_of_raw_tokens_are_sampled() {
    let folder = TempDir::new();
    let digest = |change: Option<usize>, tokens: usize| {
        let mut bytes = vec![1; 2 * tokens];
        change.into_iter().for_each(|at| bytes[2 * at] = 2);
        let path = folder.file("train.bin", bytes);
        TokenFile::open_raw_u16(&path, 1000).unwrap().digest().unwrap()
    };
    for tokens in [1, 100, 3000, 5_000_000] {
        let same = digest(None, tokens);
        assert_eq!(digest(None, tokens), same);
        for place in [0, tokens / 2, tokens - 1] {
            assert_ne!(digest(Some(place), tokens), same, "{place} of {tokens}");
        }
        assert_ne!(digest(None, tokens + 1), same);
    }
}
