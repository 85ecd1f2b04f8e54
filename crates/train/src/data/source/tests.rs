//! All kinds of data sources.

use super::*;
use crate::data::sampler::Sampler;
use crate::testing::TempDir;

fn spec(data: impl Into<String>) -> DataSpec {
    DataSpec { data: data.into(), ..DataSpec::default() }
}

fn all(tokens: &Tokens) -> Vec<u32> {
    let mut out = Vec::new();
    tokens.read(0..tokens.len(), &mut out).unwrap();
    out
}

#[test]
fn the_built_in_dataset_is_shakespeare_with_and_without_a_cache() {
    let data =
        ["tinyshakespeare", "builtin"].map(|name| open(&spec(name), &DataDirs::default()).unwrap());
    assert_eq!(data[0].digest, data[1].digest);
    let [data, _] = data;
    assert_eq!((data.train.len(), data.validation.len()), (1_003_854, 111_540));
    assert_eq!(data.tokenizer.vocab_size(), 65);
    assert!(data.tokenizer.decode(&all(&data.train)[..14]).unwrap().starts_with("First Citizen:"));
    let error = file("tinyshakespeare", &DataDirs::default()).unwrap_err().to_string();
    assert!(error.contains("XDG_CACHE_HOME"), "{error}");
    assert!(Sampler::shuffled(1, data.validation.len(), 256).is_ok());
}

#[test]
fn a_large_text_gives_the_same_tokens_as_in_memory() {
    let folder = TempDir::new();
    let dirs = DataDirs { cache: Some(folder.0.join("cache")) };
    let text = "Wind from the north-west, 12 knots.\n\nThe crew's ready.\n".repeat(50);
    let path = folder.file("text.txt", &text).display().to_string();
    let bpe = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizer/bpe.json");
    for tokenizer in [None, Some(bpe)] {
        let spec = DataSpec { tokenizer, ..spec(path.clone()) };
        let a = open_with(&spec, &dirs, 1 << 20).unwrap();
        let b = open_with(&spec, &dirs, 10).unwrap();
        let (Tokens::Memory(_), Tokens::File(file)) = (&a.train, &b.train) else { panic!() };
        assert_eq!(all(&a.train), all(&b.train));
        assert_eq!(all(&a.validation), all(&b.validation));
        assert_eq!(a.tokenizer.fingerprint(), b.tokenizer.fingerprint());
        // The second time it is cached.
        let written = || std::fs::metadata(file.path()).unwrap().modified().unwrap();
        let before = written();
        let again = open_with(&spec, &dirs, 10).unwrap();
        let Tokens::File(cached) = &again.train else { panic!() };
        assert_eq!((cached.path(), written()), (file.path(), before));
    }
}

#[test]
fn the_end_of_the_text_is_the_validation_split() {
    let folder = TempDir::new();
    let path = folder.file("text.txt", "abcdefghij".repeat(10));
    let data = open(&spec(path.display().to_string()), &DataDirs::default()).unwrap();
    assert_eq!((data.train.len(), data.validation.len()), (90, 10));
    assert_eq!(all(&data.validation), (0..10).collect::<Vec<u32>>());
    assert!(data.train.read(80..91, &mut Vec::new()).is_err());
    let half = DataSpec { validation: 0.5, ..spec(path.display().to_string()) };
    let data = open(&half, &DataDirs::default()).unwrap();
    assert_eq!((data.train.len(), data.validation.len()), (50, 50));
    assert!(open(&DataSpec { validation: 1.0, ..half }, &DataDirs::default()).is_err());
}

#[test]
fn errors_name_the_problem() {
    let folder = TempDir::new();
    let dirs = DataDirs::default();
    let say = |data: &str| open_with(&spec(data), &dirs, 1 << 20).unwrap_err().to_string();
    let error = say("tinyshakespear");
    assert!(error.ends_with("or tinyshakespeare"), "{error}");
    let path = |name: &str, content: &[u8]| folder.file(name, content).display().to_string();
    assert!(say(&path("empty.txt", b"")).contains("empty.txt is empty"));
    assert!(
        say(&path("bad.txt", b"ab\xff")).contains("bad.txt is not UTF-8: invalid byte at offset 2")
    );
    assert!(say(&folder.0.display().to_string()).contains("prepared.json"));
    for special in [folder.fifo("fifo.txt").display().to_string(), "/dev/zero".to_owned()] {
        assert!(say(&special).contains(&format!("{special} is not a regular file")), "{special}");
    }
    assert!(
        say("raw-u16:somewhere").starts_with("data.source raw-u16:somewhere needs data.tokenizer")
    );
    let tokenizer = Tokenizer::from_characters("éa".chars());
    tokenizer.save(&folder.0.join("characters.json")).unwrap();
    let tokenizer = Some(folder.0.join("characters.json"));
    let half = DataSpec { tokenizer, validation: 0.5, ..DataSpec::default() };
    let error = from_text("ééx", &half, "").unwrap_err();
    let expected = "character 3, 'x', is not among the 2 characters of the tokenizer: remove it";
    assert_eq!(error.to_string(), expected, "in the validation split");
    let error = file("nowhere", &dirs).unwrap_err().to_string();
    assert_eq!(
        error,
        "\"nowhere\" does not exist, and is not the name of a dataset (tinyshakespeare)"
    );
}

#[test]
fn token_files_of_another_tokenizer_are_refused() {
    let folder = TempDir::new();
    let (one, two) =
        (folder.file("one", "abcabc".repeat(9)), folder.file("two", "abcdef".repeat(9)));
    let make = |input: PathBuf, name: &str| {
        let at = folder.0.join(name);
        let (inputs, folder) = (vec![input], at.clone());
        let tokenizer = TokenizerSource::Characters;
        let plan = PrepareOptions { inputs, tokenizer, validation: 0.1, folder, replace: false };
        folder::prepare(&plan, &mut |_| Ok(())).unwrap();
        at
    };
    let (a, b) = (make(one, "a"), make(two, "b"));
    assert_eq!(open_folder(&a, None).unwrap().train.len(), 48);
    let open_with = |tokenizer: PathBuf| open_folder(&a, Some(&tokenizer));
    assert!(open_with(a.join(folder::TOKENIZER)).is_ok());
    let error = open_with(b.join(folder::TOKENIZER)).unwrap_err().to_string();
    assert!(error.contains("b/tokenizer.json has fingerprint "), "{error}");
    std::fs::copy(b.join(folder::TOKENIZER), a.join(folder::TOKENIZER)).unwrap();
    let error = open_folder(&a, None).unwrap_err().to_string();
    assert!(error.contains("train.tokens was prepared with tokenizer"), "{error}");
    std::fs::remove_file(a.join(folder::TOKENIZER)).unwrap();
    assert!(open_folder(&a, None).unwrap_err().to_string().contains("tokenizer.json"));
}

#[test]
fn the_character_tokenizer_is_refused_for_data_prepared_with_another() {
    let scratch = TempDir::new();
    let text = scratch.file("text", "abcabc".repeat(9));
    let bpe = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizer/bpe.json");
    let tokenizers = [("char", TokenizerSource::Characters), ("bpe", TokenizerSource::File(bpe))];
    for (name, tokenizer) in tokenizers {
        let folder = scratch.0.join(name);
        let inputs = vec![text.clone()];
        let plan = PrepareOptions { inputs, tokenizer, validation: 0.1, folder, replace: false };
        folder::prepare(&plan, &mut |_| Ok(())).unwrap();
    }
    let of = |name: &str| {
        let spec = spec(scratch.0.join(name).display().to_string());
        open(&DataSpec { require_char: true, ..spec }, &DataDirs::default())
    };
    assert!(of("char").is_ok());
    let error = of("bpe").unwrap_err().to_string();
    let expected = "data.tokenizer is char, but ";
    assert!(
        error.starts_with(expected) && error.contains("/bpe was prepared with a BPE"),
        "{error}"
    );
}

#[test]
fn raw_tokens_of_nanogpt_can_be_read() {
    let folder = TempDir::new();
    folder.file("train.bin", [0, 0, 1, 0, 2, 0]);
    folder.file("val.bin", [1, 0]);
    let tokenizer = folder.0.join("characters.json");
    Tokenizer::from_characters("abc".chars()).save(&tokenizer).unwrap();
    let data = format!("raw-u16:{}", folder.0.display());
    let spec = DataSpec { tokenizer: Some(tokenizer), ..spec(data) };
    let data = open(&spec, &DataDirs::default()).unwrap();
    assert_eq!(data.tokenizer.decode(&all(&data.train)).unwrap(), "abc");
}

#[test]
fn directories_come_from_the_environment() {
    let of = |pairs: &[(&str, &str)]| {
        DataDirs::of(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
    };
    let home = of(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "not/absolute")]);
    assert_eq!(home.cache, Some("/home/a/.cache/regatta/data".into()));
    let both = of(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")]);
    assert_eq!(both.cache, Some("/c/regatta/data".into()));
    assert_eq!(of(&[("HOME", "")]), DataDirs::default());
}
