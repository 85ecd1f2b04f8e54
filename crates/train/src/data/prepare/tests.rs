//! Prepared folders.

use super::*;
use crate::testing::TempDir;

fn plan(folder: &TempDir, inputs: &[PathBuf]) -> PrepareOptions {
    let (inputs, folder) = (inputs.to_vec(), folder.0.join("out"));
    let tokenizer = TokenizerSource::Characters;
    PrepareOptions { inputs, tokenizer, validation: 0.1, folder, replace: false }
}

#[test]
fn texts_are_prepared() {
    let folder = TempDir::new();
    let inputs =
        [folder.file("one.txt", "ab\n".repeat(20)), folder.file("two.txt", "cb\n".repeat(20))];
    let plan = plan(&folder, &inputs);
    let mut seen = Vec::new();
    let mut on_progress = |progress| {
        seen.push(progress);
        Ok(())
    };
    let made = prepare(&plan, &mut on_progress).unwrap();
    assert_eq!((made.train_tokens, made.validation_tokens, made.vocabulary), (108, 12, 4));
    assert_eq!((made.inputs[1].name.as_str(), made.inputs[1].bytes), ("two.txt", 60));
    assert_eq!(metadata(&plan.folder).unwrap(), made);
    assert_eq!(folder.names(), ["one.txt", "out", "two.txt"]);
    assert!(seen.iter().any(|p| p.doing == "writing tokens" && p.done == p.of && p.of == 120));
    let error = prepare(&plan, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("out already exists") && error.contains("--force"), "{error}");
    let again = PrepareOptions { replace: true, validation: 0.0, ..plan };
    assert_eq!(prepare(&again, &mut |_| Ok(())).unwrap().validation_tokens, 0);
    assert_eq!(folder.names(), ["one.txt", "out", "two.txt"]);
}

#[test]
fn a_folder_with_other_files_is_never_replaced() {
    let folder = TempDir::new();
    let plan = PrepareOptions { replace: true, ..plan(&folder, &[folder.file("one.txt", "ab")]) };
    std::fs::create_dir(&plan.folder).unwrap();
    folder.file("out/thesis.tex", "precious");
    let error = prepare(&plan, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("thesis.tex") && error.contains("not replaced"), "{error}");
    assert_eq!(folder.names(), ["one.txt", "out"]);
    // An empty folder may be used.
    std::fs::remove_file(folder.0.join("out/thesis.tex")).unwrap();
    prepare(&PrepareOptions { replace: false, ..plan }, &mut |_| Ok(())).unwrap();
}

#[test]
fn a_failed_preparation_leaves_nothing() {
    let folder = TempDir::new();
    let characters = folder.0.join("characters.json");
    Tokenizer::from_characters("abcd\n".chars()).save(&characters).unwrap();
    let text = folder.file("text.txt", format!("{}é", "abcd\n".repeat(300_000)));
    let unknown =
        PrepareOptions { tokenizer: TokenizerSource::File(characters), ..plan(&folder, &[text]) };
    let error = prepare(&unknown, &mut |_| Ok(())).unwrap_err().to_string();
    let expected =
        "character 1500001, 'é', is not among the 5 characters of the tokenizer: remove it";
    assert_eq!(error, expected);
    let say = |plan: &PrepareOptions| prepare(plan, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(say(&plan(&folder, &[folder.file("bad.txt", b"a\xff")])).contains("at offset 1"));
    assert!(say(&plan(&folder, &[folder.file("no.txt", "")])).contains("no.txt is empty"));
    assert!(say(&plan(&folder, &[folder.0.join("none")])).contains("none"));
    let short = say(&plan(&folder, &[folder.file("no.txt", "é")]));
    assert!(short.contains("the training split is empty (2 bytes in total)"), "{short}");
    for validation in [-0.1, 1.0, f64::NAN] {
        let error = say(&PrepareOptions { validation, ..unknown.clone() });
        assert!(error.contains("expected a number in [0, 1)"), "{error}");
    }
    assert_eq!(folder.names(), ["bad.txt", "characters.json", "no.txt", "text.txt"]);
}

#[test]
fn an_interrupted_preparation_leaves_nothing() {
    let folder = TempDir::new();
    let plan = plan(&folder, &[folder.file("text.txt", "ab\n".repeat(100))]);
    let bpe = TokenizerSource::TrainBpe { vocab_size: 258 };
    let bpe = PrepareOptions { tokenizer: bpe, ..plan.clone() };
    for (plan, doing) in [
        (&plan, "computing checksums"),
        (&plan, "collecting characters"),
        (&plan, "writing tokens"),
        (&bpe, "counting words"),
        (&bpe, "training BPE"),
    ] {
        let mut on_progress = |progress: Progress| match progress.doing == doing {
            true => Err(DataError::Interrupted),
            false => Ok(()),
        };
        let error = prepare(plan, &mut on_progress).unwrap_err();
        assert!(matches!(error, DataError::Interrupted), "{doing}: {error}");
        assert_eq!(folder.names(), ["text.txt"], "{doing}");
    }
}

#[test]
fn texts_must_be_regular_files() {
    let folder = TempDir::new();
    for path in [folder.0.clone(), PathBuf::from("/dev/null")] {
        let error = prepare(&plan(&folder, &[path]), &mut |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("is not a regular file"), "{error}");
    }
}

#[test]
fn symbolic_links_are_followed() {
    let folder = TempDir::new();
    let plan = plan(&folder, &[folder.file("text.txt", "ab\n".repeat(10))]);
    let target = folder.0.join("target");
    std::fs::create_dir(&target).unwrap();
    std::os::unix::fs::symlink(&target, &plan.folder).unwrap();
    let made = prepare(&plan, &mut |_| Ok(())).unwrap();
    let again = PrepareOptions { replace: true, validation: 0.5, ..plan.clone() };
    assert_ne!(prepare(&again, &mut |_| Ok(())).unwrap(), made);
    assert!(plan.folder.is_symlink());
    assert_eq!(metadata(&target).unwrap().validation, 0.5);
    assert_eq!(folder.names(), ["out", "target", "text.txt"]);
    std::fs::remove_dir_all(&target).unwrap();
    let error = prepare(&plan, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("cannot follow the link") && error.contains("out"), "{error}");
}

#[test]
fn bpe_is_trained_on_the_training_split_only() {
    let folder = TempDir::new();
    let text = format!("{}{}", "ahoy ".repeat(90), "zzzz ".repeat(10));
    let tokenizer = TokenizerSource::TrainBpe { vocab_size: 260 };
    let plan =
        PrepareOptions { tokenizer, ..plan(&folder, &[folder.file("text.txt", text.as_bytes())]) };
    let made = prepare(&plan, &mut |_| Ok(())).unwrap();
    assert_eq!((made.vocabulary, made.tokenizer.as_str()), (260, "BPE"));
    let tokenizer = Tokenizer::load(&plan.folder.join(TOKENIZER)).unwrap();
    assert_eq!(tokenizer.fingerprint(), made.fingerprint);
    let count = |text: &str| tokenizer.encode(text).unwrap().len();
    assert_eq!((count("ahoy"), count("zzzz")), (1, 4));
    // The same text gives the same tokenizer.
    let again = PrepareOptions { folder: folder.0.join("again"), ..plan };
    assert_eq!(prepare(&again, &mut |_| Ok(())).unwrap(), made);
}
