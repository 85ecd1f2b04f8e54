//! Help, completions, manual pages, pipes, and `env` in shells.
//!
//! `REGATTA_BLESS=1 cargo test -p regatta --test cli` updates the golden files.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde::Deserialize;
use support::{CommandOutput, SYSTEMS, clean_env, command, golden, regatta, run_line};

const COMMANDS: [&str; 4] = ["map", "env", "completions", "man"];

#[test]
fn help_shows_every_option_and_example() {
    let top = run_line("--help").ok();
    for name in COMMANDS {
        assert!(top.contains(&format!("\n  {name} ")), "{top}");
        for words in [format!("{name} --help"), format!("help {name}"), format!("{name} -h")] {
            let text = run_line(&words).ok();
            assert!(text.contains(&format!("Usage: regatta {name}")), "{text}");
        }
    }
    let examples = [
        ("map", "regatta map --system lumi-g "),
        ("map", "regatta map --system frontier -N 2 --format srun"),
        ("map", "regatta map --svg node.svg"),
        ("map", "regatta map --dump node.json"),
        ("map", "regatta map --machine node.json -n 4"),
        ("map", "regatta map --check"),
        ("env", "eval \"$(regatta env)\""),
        ("env", "srun bash -c 'eval \"$(regatta env)\"; exec python train.py'"),
        ("env", "regatta env --framework jax --json"),
        ("env", "regatta env --system lumi-g -N 16 --rank 127 --master-addr nid001"),
    ];
    for (name, example) in examples {
        let text = run_line(&format!("{name} --help")).ok();
        assert!(text.contains(example), "{name}: {example}");
    }
    for system in SYSTEMS {
        let text = run_line("map --help").ok().replace("\n          ", " ");
        assert!(text.contains(system), "{system} is not in the help");
    }
    assert!(run_line("--version").ok().starts_with("regatta "));
}

#[test]
fn examples_in_the_help_work() {
    let folder = support::TempDir::new();
    let run = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        CommandOutput::from(command().args(words).current_dir(folder.path()).output().unwrap()).ok()
    };
    run("map --dump node.json");
    assert!(run("map --machine node.json -n 1").contains("1 rank on 1 node"));
    run("map --svg node.svg");
    assert!(run("map --system frontier -N 2 --format srun").contains("--ntasks=16 "));
    assert!(run("env --framework jax --json").contains("JAX_"));
    let last = run("env --system lumi-g -N 16 --rank 127 --master-addr nid001 --master-port 29500");
    assert!(last.contains("export RANK=127;") && last.contains("export WORLD_SIZE=128;"), "{last}");
    assert!(last.contains("export LOCAL_RANK=7;"), "{last}");
}

#[test]
fn unknown_names_are_rejected_with_the_valid_ones() {
    for bad in ["lumi", "LUMI-G", "", "cpu"] {
        let error = regatta(&["map", "--system", bad]).error_line();
        for system in SYSTEMS {
            assert!(error.contains(system), "{bad}: {error}");
        }
        assert!(error.contains("cpu:SxNxC"), "{error}");
    }
    let error = run_line("map --system cpu:2x4").error_line();
    assert!(error.contains("such as cpu:2x4x8"), "{error}");
    let error = run_line("map --system lumi-g --profile frontire").error_line();
    assert_eq!(error, "unknown profile \"frontire\"; did you mean frontier?");
    let error = run_line("map --system lumi-g --profile zzzzzzzz").error_line();
    assert!(SYSTEMS.iter().all(|s| error.contains(s)), "{error}");
    let error = run_line("man mpa").error_line();
    assert!(COMMANDS.iter().all(|c| error.contains(c)), "{error}");
    let text = run_line("maps").err;
    assert!(text.contains("unrecognized subcommand 'maps'") && text.contains("'map'"), "{text}");
    assert!(run_line("completions csh").usage_error().contains("'csh'"));
    assert!(run_line("env --framework pytorch").usage_error().contains("'pytorch'"));
    let error = run_line("env --system lumi-g --rank 8").error_line();
    assert_eq!(error, "rank 8 is out of range: the job has ranks 0 to 7");
    let error = run_line("env --system lumi-g -N 2").error_line();
    assert!(error.contains("pass --master-addr"), "{error}");
}

#[test]
fn conflicting_options_are_rejected() {
    assert!(
        run_line("map --system lumi-g --machine x").usage_error().contains("cannot be used with")
    );
    assert!(run_line("map --check --dump x").usage_error().contains("cannot be used with"));
    assert!(run_line("map --json --format srun").usage_error().contains("cannot be used with"));
    assert_eq!(run_line("").code, Some(2));
}

#[test]
fn completion_scripts_are_valid_in_their_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run_line(&format!("completions {shell}")).ok();
        for word in ["ranks-per-node", "openmpi", "framework"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        // Skip shells that are not installed.
        let Ok(mut child) = clean_env(&mut Command::new(shell))
            .arg("-n")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
        else {
            continue;
        };
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{shell}");
    }
}

#[test]
fn manual_pages_render() {
    for words in ["man", "man map", "man env", "man completions", "man man"] {
        let page = run_line(words).ok();
        assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{words}: {page:.80}");
        assert!(page.contains(".TH ") && page.contains(".SH NAME"), "{words}");
        let groff = clean_env(&mut Command::new("groff"))
            .args(["-man", "-Tutf8", "-ww", "-P-cbou"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        // Skip if groff is not installed.
        let Ok(mut groff) = groff else { continue };
        groff.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let rendered = CommandOutput::from(groff.wait_with_output().unwrap());
        assert_eq!(rendered.err, "", "{words}");
        assert!(rendered.ok().contains("SYNOPSIS"), "{words}");
    }
    let map = run_line("man map").ok();
    assert!(map.contains("ranks\\-per\\-node") && map.contains("frontier"), "options and examples");
}

/// Commands that print, one per output path.
const PRINTING: [&str; 12] = [
    "map --system lumi-g",
    "map --system lumi-g --json",
    "map --system lumi-g --why",
    "map --system lumi-g --format openmpi -N 3000",
    "map --system lumi-g --dump -",
    "map --system lumi-g --svg -",
    "map --system lumi-g --check",
    "map --system lumi-g --check --json",
    "env --system lumi-g",
    "env --system lumi-g --json",
    "completions bash",
    "man map",
];

#[test]
fn closed_pipe_is_not_an_error() {
    for words in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = command().args(words.split_whitespace()).stdout(writer).output().unwrap();
        let run = CommandOutput::from(child);
        assert!(!run.err.contains("panicked"), "{words}: {}", run.err);
        assert!(!run.err.contains("error:"), "{words}: {}", run.err);
        let check = words.contains("--check");
        assert!(run.code == Some(0) || check && run.code == Some(1), "{words}: {run:?}");
    }
    let shell = |script: &str| {
        let binary = env!("CARGO_BIN_EXE_regatta");
        let mut sh = Command::new("sh");
        CommandOutput::from(clean_env(&mut sh).args(["-c", script, binary]).output().unwrap())
    };
    let run = shell("\"$0\" env --system lumi-g | head -1");
    assert_eq!((run.out.lines().count(), &run.err[..]), (1, ""));
    let run = shell("\"$0\" map --system lumi-g --json | head -c 10");
    assert_eq!((&run.out[..], &run.err[..]), ("{\"machines", ""));
}

#[test]
fn full_disk_is_an_error() {
    for words in PRINTING {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let child = command().args(words.split_whitespace()).stdout(full).output().unwrap();
        let run = CommandOutput::from(child);
        assert!(!run.err.contains("panicked"), "{words}: {}", run.err);
        assert_eq!(run.code, Some(1), "{words}: {}", run.err);
        assert!(run.err.contains("No space left on device"), "{words}: {}", run.err);
    }
}

/// A line of `env --json`.
#[derive(Deserialize)]
struct Variable {
    variable: String,
    value: Option<String>,
}

fn variables(words: &str) -> BTreeMap<String, String> {
    let text = run_line(&format!("{words} --json")).ok();
    let list: Vec<Variable> = serde_json::from_str(&text).unwrap();
    list.into_iter().filter_map(|v| Some((v.variable, v.value?))).collect()
}

#[test]
fn eval_in_a_shell_sets_every_variable() {
    let words = "env --system lumi-g -N 2 --rank 9 --master-addr a --master-port 1";
    let expected = variables(words);
    assert_eq!(expected["NCCL_NET"], "AWS Libfabric", "a value with a space");
    assert!(expected.len() > 20);
    for shell in ["dash", "bash", "sh"] {
        for script in ["eval \"$(\"$0\" WORDS)\"; env", "eval $(\"$0\" WORDS); env"] {
            let script = script.replace("WORDS", words);
            let run = clean_env(&mut Command::new(shell))
                .args(["-c", &script, env!("CARGO_BIN_EXE_regatta")])
                .output();
            let Ok(output) = run else { continue };
            let run = CommandOutput::from(output);
            assert_eq!(run.err, "", "{shell}: {script}");
            let set: BTreeMap<&str, &str> =
                run.out.lines().filter_map(|l| l.split_once('=')).collect();
            for (name, value) in &expected {
                assert_eq!(
                    set.get(name.as_str()),
                    Some(&value.as_str()),
                    "{shell} {script}: {name}"
                );
            }
        }
    }
}

#[test]
fn untrusted_values_are_not_executed_by_the_shell() {
    let evil = "$(touch /tmp/owned)`id`'; false; \"";
    let args =
        ["env", "--system", "lumi-g", "-N", "2", "--master-port", "1", "--master-addr", evil];
    let script = regatta(&args).ok();
    for (quoted, name) in [(true, "bash"), (true, "dash"), (false, "dash")] {
        let inner = if quoted { "eval \"$1\"" } else { "eval $1" };
        let run = clean_env(&mut Command::new(name))
            .args(["-c", &format!("set -e; {inner}; printf %s \"$MASTER_ADDR\""), "x", &script])
            .output();
        let Ok(output) = run else { continue };
        let run = CommandOutput::from(output);
        assert_eq!((&run.out[..], &run.err[..], run.code), (evil, "", Some(0)), "{name}");
    }
}

#[test]
fn without_and_inherit_exclude_variables() {
    let words = "env --system lumi-g -N 2 --master-addr a --master-port 1";
    let all = variables(words);
    let fewer = variables(&format!("{words} --without NCCL_NET_GDR_LEVEL --without NCCL_NET"));
    assert!(all.contains_key("NCCL_NET_GDR_LEVEL"));
    assert_eq!(fewer.len(), all.len() - 2);
    // Unlike --without, --inherit is silent about variables that would not be set.
    let inherit = format!("{words} --inherit NCCL_NET_GDR_LEVEL --inherit REGATTA_NONE");
    assert_eq!(run_line(&inherit).err, "");
    assert_eq!(variables(&inherit).len(), all.len() - 1);
}

#[test]
fn environments_match_the_golden_files() {
    for framework in ["torch", "deepspeed", "accelerate", "horovod", "jax"] {
        let mut text = String::new();
        for system in ["lumi-g", "perlmutter"] {
            for nodes in [1, 2] {
                // The last rank, whose indices are nonzero.
                let rank = if system == "lumi-g" { 8 * nodes - 1 } else { 4 * nodes - 1 };
                let words = format!(
                    "env --system {system} -N {nodes} --framework {framework} --rank {rank}"
                );
                let run = run_line(&format!("{words} --master-addr 10.0.0.1 --master-port 29500"));
                assert_eq!(run.err, "", "{words}");
                writeln!(text, "# {system}, nodes: {nodes}, rank {rank}\n{}", run.ok()).unwrap();
            }
        }
        golden(&format!("env-{framework}.txt"), &text);
    }
}
