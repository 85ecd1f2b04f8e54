//! The command line itself: help, completions, manual, pipes, and what a shell makes of `env`.
//!
//! The golden files are written anew with `REGATTA_BLESS=1 cargo test -p regatta --test cli`.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde::Deserialize;
use support::{Run, SYSTEMS, clean, command, golden, line, regatta};

const COMMANDS: [&str; 4] = ["map", "env", "completions", "man"];

#[test]
fn help_shows_every_option_and_example() {
    let top = line("--help").ok();
    for name in COMMANDS {
        assert!(top.contains(&format!("\n  {name} ")), "{top}");
        for words in [format!("{name} --help"), format!("help {name}"), format!("{name} -h")] {
            let text = line(&words).ok();
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
        let text = line(&format!("{name} --help")).ok();
        assert!(text.contains(example), "{name}: {example}");
    }
    for system in SYSTEMS {
        let text = line("map --help").ok().replace("\n          ", " ");
        assert!(text.contains(system), "{system} is not in the help");
    }
    assert!(line("--version").ok().starts_with("regatta "));
}

#[test]
fn the_examples_of_the_help_work() {
    let folder = support::Folder::new();
    let run = |words: &str| {
        let words: Vec<&str> = words.split_whitespace().collect();
        Run::from(command().args(words).current_dir(folder.path()).output().unwrap()).ok()
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
fn names_that_do_not_exist_are_answered_with_those_that_do() {
    for bad in ["lumi", "LUMI-G", "", "cpu"] {
        let sentence = regatta(&["map", "--system", bad]).sentence();
        for system in SYSTEMS {
            assert!(sentence.contains(system), "{bad}: {sentence}");
        }
        assert!(sentence.contains("cpu:SxNxC"), "{sentence}");
    }
    let sentence = line("map --system cpu:2x4").sentence();
    assert!(sentence.contains("as in cpu:2x4x8"), "{sentence}");
    let sentence = line("map --system lumi-g --profile frontire").sentence();
    assert_eq!(sentence, "there is no profile \"frontire\"; did you mean frontier?");
    let sentence = line("map --system lumi-g --profile zzzzzzzz").sentence();
    assert!(SYSTEMS.iter().all(|s| sentence.contains(s)), "{sentence}");
    let sentence = line("man mpa").sentence();
    assert!(COMMANDS.iter().all(|c| sentence.contains(c)), "{sentence}");
    let text = line("maps").err;
    assert!(text.contains("unrecognized subcommand 'maps'") && text.contains("'map'"), "{text}");
    assert!(line("completions csh").refused().contains("'csh'"));
    assert!(line("env --framework pytorch").refused().contains("'pytorch'"));
    let sentence = line("env --system lumi-g --rank 8").sentence();
    assert_eq!(sentence, "the job has ranks 0 to 7, not 8");
    let sentence = line("env --system lumi-g -N 2").sentence();
    assert!(sentence.contains("pass --master-addr"), "{sentence}");
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    assert!(line("map --system lumi-g --machine x").refused().contains("cannot be used with"));
    assert!(line("map --check --dump x").refused().contains("cannot be used with"));
    assert!(line("map --json --format srun").refused().contains("cannot be used with"));
    assert_eq!(line("").code, Some(2));
}

#[test]
fn completions_are_accepted_by_their_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = line(&format!("completions {shell}")).ok();
        for word in ["ranks-per-node", "openmpi", "framework"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        // Where the shell is not installed, there is nothing to ask.
        let Ok(mut child) = clean(&mut Command::new(shell))
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
        let page = line(words).ok();
        assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{words}: {page:.80}");
        assert!(page.contains(".TH ") && page.contains(".SH NAME"), "{words}");
        let groff = clean(&mut Command::new("groff"))
            .args(["-man", "-Tutf8", "-ww", "-P-cbou"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        // Where groff is not installed, there is nothing to ask.
        let Ok(mut groff) = groff else { continue };
        groff.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
        let rendered = Run::from(groff.wait_with_output().unwrap());
        assert_eq!(rendered.err, "", "{words}");
        assert!(rendered.ok().contains("SYNOPSIS"), "{words}");
    }
    let map = line("man map").ok();
    assert!(map.contains("ranks\\-per\\-node") && map.contains("frontier"), "options and examples");
}

/// Every way to print.
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
fn a_closed_pipe_is_no_fault() {
    for words in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = command().args(words.split_whitespace()).stdout(writer).output().unwrap();
        let run = Run::from(child);
        assert!(!run.err.contains("panicked"), "{words}: {}", run.err);
        assert!(!run.err.contains("error:"), "{words}: {}", run.err);
        let check = words.contains("--check");
        assert!(run.code == Some(0) || check && run.code == Some(1), "{words}: {run:?}");
    }
    let shell = |script: &str| {
        let binary = env!("CARGO_BIN_EXE_regatta");
        let mut sh = Command::new("sh");
        Run::from(clean(&mut sh).args(["-c", script, binary]).output().unwrap())
    };
    let run = shell("\"$0\" env --system lumi-g | head -1");
    assert_eq!((run.out.lines().count(), &run.err[..]), (1, ""));
    let run = shell("\"$0\" map --system lumi-g --json | head -c 10");
    assert_eq!((&run.out[..], &run.err[..]), ("{\"machines", ""));
}

#[test]
fn a_full_disk_is_a_fault() {
    for words in PRINTING {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let child = command().args(words.split_whitespace()).stdout(full).output().unwrap();
        let run = Run::from(child);
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
    let text = line(&format!("{words} --json")).ok();
    let list: Vec<Variable> = serde_json::from_str(&text).unwrap();
    list.into_iter().filter_map(|v| Some((v.variable, v.value?))).collect()
}

#[test]
fn shells_set_every_variable() {
    let words = "env --system lumi-g -N 2 --rank 9 --master-addr a --master-port 1";
    let wanted = variables(words);
    assert_eq!(wanted["NCCL_NET"], "AWS Libfabric", "a value with a space is among them");
    assert!(wanted.len() > 20);
    for shell in ["dash", "bash", "sh"] {
        for script in ["eval \"$(\"$0\" WORDS)\"; env", "eval $(\"$0\" WORDS); env"] {
            let script = script.replace("WORDS", words);
            let run = clean(&mut Command::new(shell))
                .args(["-c", &script, env!("CARGO_BIN_EXE_regatta")])
                .output();
            let Ok(output) = run else { continue };
            let run = Run::from(output);
            assert_eq!(run.err, "", "{shell}: {script}");
            let set: BTreeMap<&str, &str> =
                run.out.lines().filter_map(|l| l.split_once('=')).collect();
            for (name, value) in &wanted {
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
fn values_from_outside_cannot_run_as_commands() {
    let evil = "$(touch /tmp/owned)`id`'; false; \"";
    let wanted =
        ["env", "--system", "lumi-g", "-N", "2", "--master-port", "1", "--master-addr", evil];
    let script = regatta(&wanted).ok();
    for (quoted, name) in [(true, "bash"), (true, "dash"), (false, "dash")] {
        let inner = if quoted { "eval \"$1\"" } else { "eval $1" };
        let run = clean(&mut Command::new(name))
            .args(["-c", &format!("set -e; {inner}; printf %s \"$MASTER_ADDR\""), "x", &script])
            .output();
        let Ok(output) = run else { continue };
        let run = Run::from(output);
        assert_eq!((&run.out[..], &run.err[..], run.code), (evil, "", Some(0)), "{name}");
    }
}

#[test]
fn variables_can_be_left_out() {
    let words = "env --system lumi-g -N 2 --master-addr a --master-port 1";
    let all = variables(words);
    let fewer = variables(&format!("{words} --without NCCL_NET_GDR_LEVEL --without NCCL_NET"));
    assert!(all.contains_key("NCCL_NET_GDR_LEVEL"));
    assert_eq!(fewer.len(), all.len() - 2);
    // What a sweep tries need not be there.
    let trying = format!("{words} --trying NCCL_NET_GDR_LEVEL --trying REGATTA_NONE");
    assert_eq!(line(&trying).err, "");
    assert_eq!(variables(&trying).len(), all.len() - 1);
}

#[test]
fn golden_environments() {
    for framework in ["torch", "deepspeed", "accelerate", "horovod", "jax"] {
        let mut text = String::new();
        for system in ["lumi-g", "perlmutter"] {
            for nodes in [1, 2] {
                // The last rank, so that no number is 0 by chance.
                let rank = if system == "lumi-g" { 8 * nodes - 1 } else { 4 * nodes - 1 };
                let words = format!(
                    "env --system {system} -N {nodes} --framework {framework} --rank {rank}"
                );
                let run = line(&format!("{words} --master-addr 10.0.0.1 --master-port 29500"));
                assert_eq!(run.err, "", "{words}");
                writeln!(text, "# {system}, nodes: {nodes}, rank {rank}\n{}", run.ok()).unwrap();
            }
        }
        golden(&format!("env-{framework}.txt"), &text);
    }
}
