//! `regatta eval`: losses equal those of training, and data in other tokens is refused.

use serde_json::Value;

use crate::support::process::run_in;
use crate::support::train::{metrics, tiny_run};
use crate::support::{TempDir, run_line};

const TEXT: &str = "The wind came from the north-west.\nThe crew's oars were ready.\n";

/// Steps of the tiny run; the last validation is after them.
const STEPS: u64 = 10;

/// A folder with a text and a run that was trained on it.
fn trained(words: &str) -> TempDir {
    let folder = TempDir::new();
    folder.write("text.txt", TEXT.repeat(100));
    tiny_run(&folder, "run", &format!("data.source=text.txt train.steps={STEPS} -n 1 {words}"));
    folder
}

fn eval(folder: &TempDir, words: &str) -> Value {
    run_in(folder, &format!("eval {words} --json")).json()
}

#[test]
fn loss_equals_the_validation_of_training() {
    for words in ["precision=f32", "precision=bf16"] {
        let folder = trained(words);
        let expected = metrics(&folder, "run").val_losses[&STEPS];
        let found = eval(&folder, "run --threads 1");
        assert_eq!(found["loss"].as_f64(), Some(expected), "{words}: {found}");
        // eval_batches=1 of batch=24 sequences of 16 tokens.
        assert_eq!((found["tokens"].as_u64(), found["step"].as_u64()), (Some(384), Some(STEPS)));
        let again = eval(&folder, "run/checkpoints/step-00000010 --threads 1 --batches 1");
        assert_eq!(again["loss"], found["loss"]);
    }
}

#[test]
fn splits_batches_and_other_data_are_evaluated() {
    let folder = trained("");
    let [val, train] =
        ["val", "train"].map(|split| eval(&folder, &format!("run --split {split} --batches all")));
    // Windows of 16 tokens in 10 % and 90 % of 6300 characters.
    assert_eq!((val["tokens"].as_u64(), train["tokens"].as_u64()), (Some(624), Some(5664)));
    assert_ne!(val["loss"], train["loss"]);
    let [loss, bits] = ["loss", "bits_per_character"].map(|name| val[name].as_f64().unwrap());
    assert!((bits - loss / std::f64::consts::LN_2).abs() < 1e-9, "{val}");
    assert!((val["perplexity"].as_f64().unwrap() - loss.exp()).abs() < 1e-9, "{val}");
    // A text file that --data names is evaluated as a whole.
    let whole = eval(&folder, "run --data text.txt");
    assert_eq!((whole["split"].as_str(), whole["tokens"].as_u64()), (Some("all"), Some(6288)));
    let text = run_in(&folder, "eval run --data text.txt --split val");
    text.assert_ok(["val split", "perplexity", "bits/char", "tokens/s"]);
}

#[test]
fn bpe_models_are_evaluated_in_bits_per_byte_also_after_export() {
    let folder = TempDir::new();
    folder.write("text.txt", TEXT.repeat(100));
    run_in(&folder, "data prepare text.txt -o tokens --bpe 270").ok();
    tiny_run(&folder, "run", "data.source=tokens train.steps=5 -n 1");
    let found = eval(&folder, "run --batches all --threads 1");
    let [loss, bits] = ["loss", "bits_per_byte"].map(|name| found[name].as_f64().unwrap());
    let bytes_per_token = found["bytes"].as_f64().unwrap() / found["tokens"].as_f64().unwrap();
    assert!(bytes_per_token > 1.1, "{found}");
    assert!((bits - loss / bytes_per_token / std::f64::consts::LN_2).abs() < 1e-9, "{found}");
    assert_eq!(found["bits_per_character"], Value::Null);
    run_in(&folder, "generate run -n 5").ok();
    run_in(&folder, "checkpoint export run --to model").ok();
    assert_eq!(folder.read("model/tokenizer.json"), folder.read("tokens/tokenizer.json"));
    let exported = eval(&folder, "model --data tokens --threads 1");
    // Other micro-batches sum in another order.
    let difference = exported["loss"].as_f64().unwrap() - loss;
    assert!(difference.abs() < 1e-5, "{exported}");
    run_in(&folder, "eval model").assert_error("does not say what it was trained on");
}

#[test]
fn data_in_other_tokens_is_refused() {
    let folder = trained("");
    run_in(&folder, "data prepare text.txt -o tokens --bpe 260").ok();
    let error =
        ["another tokenizer (BPE, 260 tokens)", "characters", "--tokenizer run/checkpoints"];
    run_in(&folder, "eval run --data tokens").assert_error(error);
    folder.write("other.txt", "Ω".repeat(50));
    run_in(&folder, "eval run --data other.txt").assert_error(["--data other.txt", "'Ω'"]);
    run_in(&folder, "eval run --data none.txt").assert_error("none.txt");
    folder.write("short.txt", "The wind");
    run_in(&folder, "eval run --data short.txt").assert_error("8 tokens are too few");
    run_in(&folder, "eval nowhere").assert_error("nowhere does not exist; `regatta runs` lists");
    run_in(&folder, "eval tokens").assert_error("no model in tokens: expected a run folder");
    std::fs::rename(folder.join("text.txt"), folder.join("moved.txt")).unwrap();
    run_in(&folder, "eval run").assert_error(["data of the run, text.txt", "name it with --data"]);
    for (words, error) in [("--batches 0", "at least 1, or all"), ("--split test", "'test'")] {
        run_in(&folder, &format!("eval run {words}")).assert_usage_error(error);
    }
}

#[test]
fn help_has_examples() {
    run_line("eval --help").assert_ok(["regatta eval runs/mine --batches all", "byte of text"]);
}
