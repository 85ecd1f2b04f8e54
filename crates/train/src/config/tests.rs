mod plans;

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

/// The configuration of a file's text and words over it.
fn file(text: &str, words: &[&str]) -> Result<Resolved, ConfigError> {
    resolve(Some(First::File(PathBuf::from("run.toml"), text.to_owned())), words)
}

fn words(words: &[&str]) -> Result<Resolved, ConfigError> {
    resolve(None, words)
}

fn sentence<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn later_layers_win_and_are_known() {
    let text = "preset = \"gpt2\"\n[train]\nsteps = 7\nbatch = 8\n";
    let all = file(text, &["batch=16", "optimizer.rate=1e-2", "model.bias=auto"]).unwrap();
    assert_eq!((all.config.train.steps, all.config.train.batch), (7, 16));
    assert_eq!((all.config.model.layers, all.config.model.vocabulary), (12, 50257));
    assert_eq!(all.config.optimizer.rate, 0.01);
    assert_eq!(all.name, "run");
    let origin = |key| all.origin(key).unwrap().to_string();
    assert_eq!(origin("train.steps"), "run.toml");
    assert_eq!(origin("train.batch"), "command line");
    assert_eq!(origin("model.layers"), "preset gpt2");
    assert_eq!(origin("train.seed"), "default");
    assert_eq!(words(&[]).unwrap().name, "tiny");
    // A file without a preset stands on the defaults, not on the default preset.
    assert_eq!(file("", &[]).unwrap().config, Config::default());
}

#[test]
fn a_file_may_say_what_it_is_called() {
    let named = file("name = \"my \\\"own\\\"\"\n[train]\nsteps = 3\n", &[]).unwrap();
    assert_eq!((named.name.as_str(), named.config.train.steps), ("my \"own\"", 3));
    assert_eq!(file(&named.to_toml(), &["steps=4"]).unwrap().name, named.name);
    assert_eq!(file(&words(&[]).unwrap().to_toml(), &[]).unwrap().name, "tiny");
    // Over the name of the preset that it stands on.
    assert_eq!(file("preset = \"mlp\"\nname = \"mine\"\n", &[]).unwrap().name, "mine");
    let error = sentence(file("name = 3\n", &[]));
    assert_eq!(error, "run.toml, line 1: name is a TOML integer, and must be a text");
}

#[test]
fn a_misspelled_key_is_answered_with_the_right_one() {
    let cases = [
        ("train.setps=3", "unknown key train.setps: did you mean train.steps?"),
        ("setps=3", "unknown key setps: did you mean train.steps?"),
        ("trian.steps=3", "did you mean train.steps?"),
        ("optimizer.steps=3", "did you mean train.steps?"),
        ("nonsense.whatever=3", "`regatta train --keys` lists all"),
    ];
    for (word, expected) in cases {
        let error = sentence(words(&[word]));
        assert!(error.contains(expected), "{word}: {error}");
        assert!(error.starts_with("command line: "), "{error}");
    }
    let error = sentence(file("[train]\nseed = 1\n\nstep = 3\n", &[]));
    assert_eq!(error, "run.toml, line 4: unknown key train.step: did you mean train.steps?");
    let error = sentence(file("steps = 3\n", &[]));
    assert_eq!(error, "run.toml, line 1: unknown key steps: did you mean train.steps?");
}

#[test]
fn a_wrong_value_is_answered_with_what_is_expected() {
    let cases = [
        ("steps=many", "train.steps is many, and must be a whole number, 1 or more"),
        ("steps=0", "train.steps is 0, and must be a whole number, 1 or more"),
        ("steps=-1", "train.steps is -1,"),
        ("steps=", "train.steps is empty,"),
        ("layers=99999999999999999999999", "a whole number, 1 to 10000"),
        ("width=2000000", "model.width is 2000000, and must be a whole number, 1 to 1048576"),
        ("dropout=1", "model.dropout is 1, and must be a number from 0 to 0.9999999"),
        // As a number of 32 bits it is 1.
        ("dropout=0.99999999", "model.dropout is 0.99999999, and must be a number from 0 to"),
        ("beta2=0.99999999", "optimizer.beta2 is 0.99999999,"),
        ("rate=nan", "optimizer.rate is nan, and must be a number above 0"),
        ("rate=inf", "optimizer.rate is inf,"),
        ("rate=0", "optimizer.rate is 0,"),
        ("precision=fp8", "train.precision is fp8, and must be f32 or bf16"),
        ("family=bert", "model.family is bert, and must be gpt2, llama or mlp"),
        ("recompute=yes", "train.recompute is yes, and must be true or false"),
        ("bias=perhaps", "model.bias is perhaps, and must be true, false or auto"),
        ("resume=", "checkpoint.resume is empty, and must be auto, never or a path"),
    ];
    for (word, expected) in cases {
        let error = sentence(words(&[word]));
        assert!(error.contains(expected), "{word}: {error}");
    }
    let in_file = [
        ("[train]\n\nsteps = \"100\"", "run.toml, line 3: train.steps is \"100\", and must be"),
        ("[train]\nsteps = 1.5", "line 2: train.steps is 1.5,"),
        ("[train]\nsteps = [1]", "line 2: train.steps is a TOML array,"),
        ("[data]\nsource = 3", "data.source is 3, and must be a text"),
        ("[model]\nbias = \"true\"", "model.bias is \"true\","),
        ("preset = 3", "line 1: preset is a TOML integer, and must be the name of a preset"),
        ("preset = \"gtp2\"", "did you mean gpt2?"),
        ("[train\nsteps = 3", "run.toml, line 1: "),
        ("[train]\nsteps = 3\nsteps = 4", "run.toml, line 3: duplicate key"),
    ];
    for (text, expected) in in_file {
        let error = sentence(file(text, &[]));
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn numbers_may_be_written_as_people_and_toml_do() {
    let text = "[train]\nsteps = 1_000\nseed = 0x10\n[optimizer]\nclip = 2\n";
    let config = file(text, &["warmup=1_0", "rate=3e-4"]).unwrap().config;
    assert_eq!((config.train.steps, config.train.seed), (1000, 16));
    assert_eq!((config.optimizer.clip, config.optimizer.warmup), (2.0, 10));
    assert!(words(&["steps=1__0"]).is_err() && words(&["steps=_1"]).is_err());
}

#[test]
fn the_largest_share_leaves_something_over() {
    let config = words(&["dropout=0.9999999", "beta2=0.9999999"]).unwrap().config;
    assert!((config.model.dropout as f32) < 1.0 && (config.optimizer.beta2 as f32) < 1.0);
}

#[test]
fn words_that_are_no_keys_are_refused() {
    for word in ["steps", "=3", " =3"] {
        let error = sentence(words(&["seed=1", word]));
        assert!(error.contains("is not key=value"), "{error}");
    }
    let error = sentence(load(&["shakespear-char"]));
    assert!(
        error.contains("no preset and no file shakespear-char: did you mean shakespeare-char?")
    );
    let error = sentence(load(&["does-not-exist.toml"]));
    assert!(error.starts_with("does-not-exist.toml: "), "{error}");
    assert_eq!(load(&["steps=3"]).unwrap().config.train.steps, 3);
    assert_eq!(load(&["mlp", "steps=3"]).unwrap().name, "mlp");
}

#[test]
fn a_name_that_several_sections_have_must_be_written_out() {
    let error = sentence(words(&["schedule=linear"]));
    let expected =
        "command line: schedule may be optimizer.schedule or parallel.schedule: write which";
    assert_eq!(error, expected);
    assert!(words(&["parallel.schedule=gpipe", "optimizer.schedule=linear"]).is_ok());
}

#[test]
fn the_batch_is_what_was_said_last() {
    let batch = |all: Resolved| (all.config.train.batch, all.config.train.batch_per_rank);
    let text = "[train]\nbatch_per_rank = 4\n";
    assert_eq!(batch(file(text, &[]).unwrap()), (0, 4));
    assert_eq!(batch(file(text, &["batch=8"]).unwrap()), (8, 0));
    assert_eq!(batch(words(&["batch_per_rank=2"]).unwrap()), (0, 2));
    let error = sentence(words(&["batch_per_rank=2", "batch=8"]));
    assert!(error.contains("train.batch is 8 and train.batch_per_rank is 2: set one"), "{error}");
    let again = file(text, &[]).unwrap().config;
    assert_eq!(Config::from_toml(Path::new("x"), &again.to_toml()).unwrap(), again);
}

#[test]
fn shapes_follow_their_family() {
    let shape = |all: &[&str]| words(all).unwrap().config.shape(65).unwrap();
    let gpt = shape(&["bias=auto"]);
    assert_eq!((gpt.vocabulary, gpt.feed_forward, gpt.kv_heads), (65, 512, 4));
    assert!(gpt.tied && gpt.bias);
    let llama = shape(&["family=llama", "bias=auto"]);
    assert_eq!(llama.feed_forward, 352);
    assert!(!llama.tied && !llama.bias);
    assert_eq!(shape(&["vocabulary=100"]).vocabulary, 100);
    let error = sentence(words(&["vocabulary=50"]).unwrap().config.shape(65));
    assert!(error.contains("model.vocabulary 50 is less than the 65"), "{error}");
    let error = sentence(words(&["width=130"]).unwrap().config.shape(65));
    assert!(error.contains("model.width 130 is not a multiple of model.heads 4"), "{error}");
}

#[test]
fn presets_have_the_published_numbers_of_parameters() {
    // Of the models' cards, and counted from their weight files.
    let published = [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-1b", 1_235_814_400),
        ("llama-3b", 3_212_749_824),
        ("llama-7b", 6_738_415_616),
        ("llama-8b", 8_030_261_248),
        ("llama-70b", 70_553_706_496),
    ];
    for (name, parameters) in published {
        assert_eq!(
            presets::find(name).unwrap().parameters().unwrap(),
            (parameters, true),
            "{name}"
        );
    }
    for preset in PRESETS {
        let config = preset.config().unwrap();
        config.shape(config.model.vocabulary.max(65)).unwrap();
        config.validate(1).unwrap();
        assert!(config.validate(4).is_ok(), "{} on four ranks", preset.name);
        assert!(preset.about().ends_with('.'), "{}: {}", preset.name, preset.about());
    }
}

#[test]
fn the_nanogpt_preset_has_nanogpts_sizes() {
    let config = presets::find("shakespeare-char").unwrap().config().unwrap();
    let shape = config.shape(65).unwrap();
    // nanoGPT prints 0.80M, positions not counted: 4 layers of 12 * 128 * 128 and two norms, the
    // characters, and the last norm.
    let layers = 4 * (12 * 128 * 128 + 2 * 128);
    assert_eq!(shape.parameters() - 64 * 128, layers + 65 * 128 + 128);
    assert_eq!((config.train.batch, config.train.steps), (12, 2000));
    // As nanoGPT counts the warm-up.
    assert_eq!(config.schedule(1).rate(0), config.optimizer.rate / 101.0);
}

#[test]
fn every_key_is_documented_and_named_once() {
    let mut names: Vec<String> = KEYS.iter().map(Key::full).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), KEYS.len());
    for key in KEYS {
        let about = key.about();
        assert!(about.ends_with('.') && !about.contains("  "), "{}: {about}", key.full());
        assert!(keys_text().contains(&format!("  {} = {}  (", key.full(), key.default())));
    }
}

#[test]
fn the_resolved_configuration_says_who_set_what() {
    let all = file("[train]\nseed = 5\n", &["steps=9"]).unwrap();
    let text = all.to_toml();
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
    assert_eq!(line("steps"), "steps = 9                     # command line, default 1000");
    assert_eq!(line("seed"), "seed = 5                      # run.toml, default 1337");
    assert_eq!(line("layers"), "layers = 4                    # default");
    assert_eq!(Config::from_toml(Path::new("x"), &text).unwrap(), all.config);
}

/// The documentation has the tables between such lines.
fn table_of(page: &str, name: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let after = page.split_once(&begin).map_or("", |(_, after)| after);
    after.split_once(&end).map_or("", |(table, _)| table).to_owned()
}

#[test]
fn the_documentation_has_all_keys_and_presets() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/train.md");
    let mut page = std::fs::read_to_string(&path).unwrap();
    for (name, table) in [("keys", keys_markdown()), ("presets", presets_markdown().unwrap())] {
        let there = table_of(&page, name);
        if there == table {
            continue;
        }
        assert!(!there.is_empty(), "docs/train.md has no table between <!-- {name} --> marks");
        assert!(
            std::env::var_os("REGATTA_BLESS").is_some(),
            "the table of {name} in docs/train.md is old: write it anew with \
             REGATTA_BLESS=1 cargo test -p regatta-train config"
        );
        let mark = format!("<!-- {name} -->\n");
        page = page.replace(&(mark.clone() + &there), &(mark + &table));
        std::fs::write(&path, &page).unwrap();
    }
}

proptest! {
    #[test]
    fn texts_come_back_from_toml(text in any::<String>(), rate in 1e-300f64..1e300) {
        let mut config = Config::default();
        config.data.source = text;
        config.optimizer.rate = rate;
        let again = Config::from_toml(Path::new("x"), &config.to_toml()).unwrap();
        prop_assert_eq!(again, config);
    }

    #[test]
    fn foreign_text_is_refused_and_nothing_else(text in any::<String>(), word in any::<String>()) {
        let _ = file(&text, &[&word]);
    }

    #[test]
    fn keys_take_any_word_or_refuse_it(at in 0..KEYS.len(), word in "[0-9a-z.e_-]{0,30}") {
        if let Ok(all) = words(&[&format!("{}={word}", KEYS[at].full())]) {
            let _ = all.config.validate(3);
            let _ = all.config.shape(65).map(|shape| shape.parameters());
            let again = Config::from_toml(Path::new("x"), &all.config.to_toml()).unwrap();
            prop_assert_eq!(again, all.config);
        }
    }
}
