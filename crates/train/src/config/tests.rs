mod validate;

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

/// Resolves the text of a file and arguments.
fn file(text: &str, args: &[&str]) -> Result<Resolved> {
    resolve(Some(Base::File(PathBuf::from("run.toml"), text.to_owned())), args)
}

fn args(args: &str) -> Result<Resolved> {
    resolve(None, &args.split_whitespace().collect::<Vec<_>>())
}

fn message<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn later_layers_override_earlier_ones_and_record_their_origin() {
    let text = "preset = \"gpt2\"\n[train]\nsteps = 7\nbatch = 8\n";
    let all = file(text, &["batch=16", "optimizer.lr=1e-2", "model.bias=auto"]).unwrap();
    assert_eq!((all.config.train.steps, all.config.train.batch), (7, 16));
    assert_eq!((all.config.model.num_layers, all.config.model.vocab_size), (12, 50257));
    assert_eq!(all.config.optimizer.lr, 0.01);
    assert_eq!(all.name, "run");
    let origin = |key| all.origin(key).unwrap().to_string();
    assert_eq!(origin("train.steps"), "run.toml");
    assert_eq!(origin("train.batch"), "command line");
    assert_eq!(origin("model.num_layers"), "preset gpt2");
    assert_eq!(origin("train.seed"), "default");
    assert_eq!(args("").unwrap().name, "tiny");
    // A file without a preset is based on the defaults, not on the default preset.
    assert_eq!(file("", &[]).unwrap().config, Config::default());
}

#[test]
fn a_file_may_set_the_configuration_name() {
    let named = file("name = \"my \\\"own\\\"\"\n[train]\nsteps = 3\n", &[]).unwrap();
    assert_eq!((named.name.as_str(), named.config.train.steps), ("my \"own\"", 3));
    assert_eq!(file(&named.to_toml(), &["steps=4"]).unwrap().name, named.name);
    assert_eq!(file(&args("").unwrap().to_toml(), &[]).unwrap().name, "tiny");
    // Overrides the name of its preset.
    assert_eq!(file("preset = \"mlp\"\nname = \"mine\"\n", &[]).unwrap().name, "mine");
    let error = message(file("name = 3\n", &[]));
    assert_eq!(error, "run.toml, line 1: name is a TOML integer, expected a string");
}

#[test]
fn a_bpe_model_without_data_is_refused_with_what_to_do() {
    let check = |words: &[&str]| load(words).unwrap().check_data_given();
    let error = message(check(&["gpt2"]));
    for part in ["50257 tokens", "data prepare my.txt --bpe 50257", "train shakespeare-char"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    check(&["gpt2", "data.source=tinyshakespeare"]).unwrap();
    check(&["gpt2", "tokenizer=gpt2/tokenizer.json"]).unwrap();
    check(&["gpt2", "vocab_size=0"]).unwrap();
    for preset in ["tiny", "shakespeare-char", "shakespeare-char-large", "llama-tiny", "mlp"] {
        check(&[preset]).unwrap();
    }
}

#[test]
fn a_misspelled_key_is_refused_with_the_right_one() {
    let cases = [
        ("train.setps=3", "unknown key train.setps: did you mean train.steps?"),
        ("setps=3", "unknown key setps: did you mean train.steps?"),
        ("trian.steps=3", "did you mean train.steps?"),
        ("optimizer.steps=3", "did you mean train.steps?"),
        ("nonsense.qqq=3", "`regatta train --keys` lists all keys"),
    ];
    for (word, expected) in cases {
        let error = message(args(word));
        assert!(error.contains(expected), "{word}: {error}");
        assert!(error.starts_with("command line: "), "{error}");
    }
    let error = message(file("[train]\nseed = 1\n\nstep = 3\n", &[]));
    assert_eq!(error, "run.toml, line 4: unknown key train.step: did you mean train.steps?");
    let error = message(file("steps = 3\n", &[]));
    assert_eq!(error, "run.toml, line 1: unknown key steps: did you mean train.steps?");
}

#[test]
fn an_invalid_value_is_refused_with_the_accepted_ones() {
    let cases = [
        ("steps=many", "train.steps is many, expected an integer in [1, 1000000000000]"),
        ("steps=99999999999999999999", "expected an integer in [1, 1000000000000]"),
        ("seed=-1", "train.seed is -1, expected an integer in [0, 2^64 - 1]"),
        ("steps=0", "train.steps is 0, expected an integer in [1, "),
        ("steps=-1", "train.steps is -1,"),
        ("steps=", "train.steps is empty,"),
        ("num_layers=99999999999999999999999", "an integer in [1, 10000]"),
        (
            "hidden_size=2000000",
            "model.hidden_size is 2000000, expected an integer in [1, 1048576]",
        ),
        ("dropout=1", "model.dropout is 1, expected a number in [0, 1)"),
        // Rounds to 1 in f32.
        ("dropout=0.99999999", "model.dropout is 0.99999999, expected a number in"),
        ("beta2=0.99999999", "optimizer.beta2 is 0.99999999,"),
        ("lr=nan", "optimizer.lr is nan, expected a number > 0"),
        ("lr=inf", "optimizer.lr is inf,"),
        ("lr=0", "optimizer.lr is 0,"),
        ("precision=fp8", "train.precision is fp8, expected f32, bf16 or auto"),
        ("family=bert", "model.family is bert, expected gpt2, llama or mlp"),
        ("recompute=yes", "train.recompute is yes, expected true or false"),
        ("bias=perhaps", "model.bias is perhaps, expected true, false or auto"),
        ("resume=", "checkpoint.resume is empty, expected auto, never or a path"),
    ];
    for (word, expected) in cases {
        let error = message(args(word));
        assert!(error.contains(expected), "{word}: {error}");
    }
    let in_file = [
        ("[train]\n\nsteps = \"100\"", "run.toml, line 3: train.steps is \"100\", expected"),
        ("[train]\nsteps = 1.5", "line 2: train.steps is 1.5,"),
        ("[train]\nsteps = [1]", "line 2: train.steps is a TOML array,"),
        ("[data]\nsource = 3", "data.source is 3, expected a string"),
        ("[model]\nbias = \"true\"", "model.bias is \"true\","),
        ("preset = 3", "line 1: preset is a TOML integer, expected the name of a preset"),
        ("preset = \"gtp2\"", "did you mean gpt2?"),
        ("[train\nsteps = 3", "run.toml, line 1: "),
        ("[train]\nsteps = 3\nsteps = 4", "run.toml, line 3: invalid TOML: duplicate key"),
    ];
    for (text, expected) in in_file {
        let error = message(file(text, &[]));
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn numbers_accept_underscores_and_toml_notations() {
    let text = "[train]\nsteps = 1_000\nseed = 0x10\n[optimizer]\ngrad_clip = 2\n";
    let config = file(text, &["warmup_steps=1_0", "lr=3e-4"]).unwrap().config;
    assert_eq!((config.train.steps, config.train.seed), (1000, 16));
    assert_eq!((config.optimizer.grad_clip, config.optimizer.warmup_steps), (2.0, 10));
    assert!(args("steps=1__0").is_err() && args("steps=_1").is_err());
}

#[test]
fn the_largest_fraction_is_below_one_in_f32() {
    let config = args("dropout=0.9999999 beta2=0.9999999").unwrap().config;
    assert!((config.model.dropout as f32) < 1.0 && (config.optimizer.beta2 as f32) < 1.0);
}

#[test]
fn arguments_without_a_key_and_unknown_presets_are_refused() {
    for word in ["steps", "=3", " =3"] {
        let error = message(resolve(None, &["seed=1", word]));
        assert!(error.contains("is not key=value"), "{error}");
    }
    for (words, expected) in [
        (&["steps", "5"][..], "no preset or file named steps: to set this key, write steps=VALUE"),
        (&["tiny", "seed"], "`seed` is not key=value: to set this key, write seed=VALUE"),
        (
            &["preset=gpt2"],
            "command line: unknown key preset: a preset or file is the first argument: `",
        ),
        (&["tiny", "gpt2"], "`gpt2` is not key=value: only one preset or file can be given"),
    ] {
        let error = message(load(words));
        assert!(error.starts_with(expected), "{error}");
    }
    let error = message(file("seed = 1\npreset = \"tinyy\"\n", &[]));
    assert_eq!(error, "run.toml, line 2: no preset named tinyy: did you mean tiny?");
    let error = message(load(&["shakespear-char"]));
    assert_eq!(error, "no preset or file named shakespear-char: did you mean shakespeare-char?");
    let error = message(load(&["does-not-exist.toml"]));
    assert!(error.starts_with("cannot read does-not-exist.toml: "), "{error}");
    assert_eq!(load(&["steps=3"]).unwrap().config.train.steps, 3);
    assert_eq!(load(&["mlp", "steps=3"]).unwrap().name, "mlp");
}

#[test]
fn a_configuration_file_must_be_regular_and_small() {
    let folder = crate::testing::TempDir::new();
    let fifo = folder.fifo("fifo.toml").display().to_string();
    let error = message(load(&[fifo]));
    assert!(error.contains("fifo.toml: it is a FIFO, not a regular file"), "{error}");
    let large = folder.file("large.toml", vec![b' '; MAX_CONFIG_BYTES as usize + 1]);
    let error = message(load(&[large.display().to_string()]));
    assert!(error.contains("it has 1048577 bytes, but such a file has at most 1048576"), "{error}");
}

#[test]
fn a_short_form_that_several_sections_have_is_ambiguous() {
    let error = message(args("dir=x"));
    assert_eq!(error, "command line: dir is ambiguous: use checkpoint.dir or offload.dir");
    let config = args("checkpoint.dir=x schedule=gpipe lr_schedule=linear").unwrap().config;
    assert_eq!((config.checkpoint.dir.as_str(), config.offload.dir.as_str()), ("x", ""));
    assert_eq!(config.optimizer.lr_schedule, LrDecay::Linear);
}

#[test]
fn the_later_of_batch_and_batch_per_replica_wins() {
    let batch = |all: Resolved| (all.config.train.batch, all.config.train.batch_per_replica);
    let text = "[train]\nbatch_per_replica = 4\n";
    assert_eq!(batch(file(text, &[]).unwrap()), (0, 4));
    assert_eq!(batch(file(text, &["batch=8"]).unwrap()), (8, 0));
    assert_eq!(batch(args("batch_per_replica=2").unwrap()), (0, 2));
    let error = message(args("batch_per_replica=2 batch=8"));
    let expected = "train.batch is 8 and train.batch_per_replica is 2: set only one";
    assert!(error.contains(expected), "{error}");
    let again = file(text, &[]).unwrap().config;
    assert_eq!(Config::from_toml(Path::new("x"), &again.to_toml()).unwrap(), again);
}

#[test]
fn shape_defaults_depend_on_the_family() {
    let shape = |all: &str| args(all).unwrap().config.shape(65).unwrap();
    let gpt = shape("family=gpt2 bias=auto tie_embeddings=auto");
    assert_eq!((gpt.vocab_size, gpt.intermediate_size, gpt.num_kv_heads), (65, 512, 4));
    assert!(gpt.tie_embeddings && gpt.bias);
    let llama = shape("family=llama bias=auto tie_embeddings=auto");
    assert_eq!(llama.intermediate_size, 352);
    assert!(!llama.tie_embeddings && !llama.bias);
    assert_eq!(shape("vocab_size=100").vocab_size, 100);
    let error = message(args("vocab_size=50").unwrap().config.shape(65));
    let expected = "model.vocab_size 50 is smaller than the tokenizer's vocabulary of 65";
    assert!(error.contains(expected), "{error}");
    for (words, expected) in [
        (
            "family=gpt2 hidden_size=130",
            "130 is not a multiple of model.num_heads 4: try model.hidden_size=132",
        ),
        (
            "family=llama hidden_size=131",
            "131 is not a multiple of model.num_heads 4: try model.hidden_size=128",
        ),
        ("num_kv_heads=3", "3 does not divide model.num_heads 4: try model.num_kv_heads=2"),
    ] {
        let error = message(args(words).unwrap().config.shape(65));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn presets_have_the_published_parameter_counts() {
    // From the model cards and weight files.
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
        let found = presets::find(name).unwrap().parameters().unwrap();
        assert_eq!(found, (parameters, true), "{name}");
    }
    for preset in PRESETS {
        let config = preset.config().unwrap();
        config.shape(config.model.vocab_size.max(65)).unwrap();
        config.validate(1).unwrap();
        assert!(config.validate(4).is_ok(), "{} on four ranks", preset.name);
        assert!(preset.description().ends_with('.'), "{}: {}", preset.name, preset.description());
    }
}

#[test]
fn the_nanogpt_preset_has_the_sizes_of_nanogpt() {
    let config = presets::find("shakespeare-char").unwrap().config().unwrap();
    let shape = config.shape(65).unwrap();
    // nanoGPT prints 0.80M without position embeddings: 4 layers of 12 * 128 * 128 and two norms, the
    // token embedding and the final norm.
    let layers = 4 * (12 * 128 * 128 + 2 * 128);
    assert_eq!(shape.num_params() - 64 * 128, layers + 65 * 128 + 128);
    assert_eq!((config.train.batch, config.train.steps), (12, 2000));
    // The warmup of nanoGPT.
    assert_eq!(config.lr_schedule(1).at(0), config.optimizer.lr / 101.0);
}

#[test]
fn keys_are_documented_and_unique() {
    let mut names: Vec<String> = KEYS.iter().map(Key::full_name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), KEYS.len());
    for key in KEYS {
        let text = key.description();
        assert!(text.ends_with('.') && !text.contains("  "), "{}: {text}", key.full_name());
        assert!(keys_text().contains(&format!("  {} = {}  (", key.full_name(), key.default())));
    }
}

#[test]
fn the_resolved_configuration_lists_origins() {
    let all = file("[train]\nseed = 5\n", &["steps=9"]).unwrap();
    let text = all.to_toml();
    let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
    assert_eq!(line("steps"), "steps = 9                     # command line, default 1000");
    assert_eq!(line("seed"), "seed = 5                      # run.toml, default 1337");
    assert_eq!(line("num_layers"), "num_layers = 4                # default");
    assert_eq!(Config::from_toml(Path::new("x"), &text).unwrap(), all.config);
}

/// The table between the markers of a page.
fn table_between_markers(page: &str, name: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let after = page.split_once(&begin).map_or("", |(_, after)| after);
    after.split_once(&end).map_or("", |(table, _)| table).to_owned()
}

#[test]
fn the_documentation_lists_all_keys_and_presets() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/train/reference.md");
    let mut page = std::fs::read_to_string(&path).unwrap();
    for (name, table) in [("keys", keys_markdown()), ("presets", presets_markdown().unwrap())] {
        let current = table_between_markers(&page, name);
        if current == table {
            continue;
        }
        assert!(!current.is_empty(), "{path:?} has no table between <!-- {name} --> markers");
        assert!(
            std::env::var_os("REGATTA_BLESS").is_some(),
            "the {name} table in docs/train/reference.md is out of date: regenerate it by \
             REGATTA_BLESS=1 cargo test -p regatta-train config"
        );
        let marker = format!("<!-- {name} -->\n");
        page = page.replace(&(marker.clone() + &current), &(marker + &table));
        std::fs::write(&path, &page).unwrap();
    }
}

proptest! {
    #[test]
    fn values_round_trip_through_toml(text in any::<String>(), lr in 1e-300f64..1e300) {
        let mut config = Config::default();
        config.data.source = text;
        config.optimizer.lr = lr;
        let again = Config::from_toml(Path::new("x"), &config.to_toml()).unwrap();
        prop_assert_eq!(again, config);
    }

    #[test]
    fn arbitrary_input_never_panics(text in any::<String>(), arg in any::<String>()) {
        let _ = file(&text, &[&arg]);
    }

    #[test]
    fn keys_accept_or_refuse_any_value(at in 0..KEYS.len(), word in "[0-9a-z.e_-]{0,30}") {
        if let Ok(all) = args(&format!("{}={word}", KEYS[at].full_name())) {
            let _ = all.config.validate(3);
            let _ = all.config.shape(65).map(|shape| shape.num_params());
            let again = Config::from_toml(Path::new("x"), &all.config.to_toml()).unwrap();
            prop_assert_eq!(again, all.config);
        }
    }
}

#[test]
fn schedule_names_round_trip() {
    for kind in ScheduleKind::ALL {
        let resolved = args(&format!("schedule={}", kind.name())).unwrap();
        assert_eq!(resolved.config.parallel.schedule, kind);
    }
    let error = args("schedule=zbh1").unwrap_err().to_string();
    assert!(error.ends_with("expected gpipe, 1f1b, interleaved or zero-bubble"), "{error}");
}
