//! Help, completions, manual pages, pipes, and `env` in shells.
//!
//! `REGATTA_BLESS=1 cargo test -p regatta --test commands cli` updates the golden files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, Stdio};

use regatta_testbed::assert_contains;
use serde::Deserialize;
use serde_json::Value;

use crate::support::process::{run_command, run_in};
use crate::support::{
    CommandOutput, REGATTA, SYSTEMS, TempDir, clean_env, command, from_json, golden, map_json,
    regatta, run_line,
};

const COMMANDS: [&str; 4] = ["map", "env", "completions", "man"];

#[test]
fn help_shows_every_option_and_example() {
    let top = run_line("--help").ok();
    for name in COMMANDS {
        assert_contains(&top, &format!("\n  {name} "));
        for words in [format!("{name} --help"), format!("help {name}"), format!("{name} -h")] {
            run_line(&words).assert_ok(&format!("Usage: regatta {name}"));
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
        run_line(&format!("{name} --help")).assert_ok(example);
    }
    assert_contains(run_line("map --help").ok().replace("\n          ", " "), SYSTEMS);
    assert!(run_line("--version").ok().starts_with("regatta "));
}

#[test]
fn examples_in_the_help_work() {
    let folder = TempDir::new();
    run_in(&folder, "map --dump node.json").assert_stderr("wrote node.json\n").ok();
    run_in(&folder, "map --machine node.json -n 1").assert_ok("1 rank on 1 node");
    run_in(&folder, "map -n 1 --svg node.svg").assert_stderr("wrote node.svg\n").ok();
    assert_contains(folder.read("node.svg"), " with 1 rank<");
    run_line("map --system frontier -N 2 --format srun").assert_ok("--ntasks=16 ");
    run_line("env --framework jax --json").assert_ok("JAX_");
    let last = "env --system lumi-g -N 16 --rank 127 --master-addr nid001 --master-port 29500";
    let exports = ["export RANK=127;", "export WORLD_SIZE=128;", "export LOCAL_RANK=7;"];
    run_line(last).assert_ok(exports);
}

#[test]
fn unknown_names_are_rejected_with_the_valid_ones() {
    for bad in ["lumi", "LUMI-G", "", "cpu"] {
        let run = || regatta(&["map", "--system", bad]);
        run().assert_usage_error(SYSTEMS);
        run().assert_usage_error(["'--system <NAME>'", "cpu:SxNxC"]);
    }
    run_line("map --system cpu:2x4").assert_usage_error("such as cpu:2x4x8");
    let error = run_line("map --system lumi-g --site frontire").error_line();
    assert_eq!(error, "unknown profile \"frontire\"; did you mean frontier?");
    run_line("map --system lumi-g --site zzzzzzzz").assert_error(SYSTEMS);
    run_line("man mpa").assert_error(COMMANDS);
    run_line("maps").assert_stderr(["unrecognized subcommand 'maps'", "'map'"]);
    run_line("completions csh").assert_usage_error("'csh'");
    run_line("env --framework pytorch").assert_usage_error("'pytorch'");
    let error = run_line("env --system lumi-g --rank 8").error_line();
    assert_eq!(error, "rank 8 is out of range: the job has ranks 0 to 7");
}

#[test]
fn conflicting_options_are_rejected() {
    run_line("map --system lumi-g --machine x").assert_usage_error("cannot be used with");
    run_line("map --check --dump x").assert_usage_error("cannot be used with");
    run_line("map --json --format srun").assert_usage_error("cannot be used with");
    assert_eq!(run_line("").code, Some(2));
}

#[test]
fn invalid_numbers_are_usage_errors() {
    for (words, expected) in [
        ("generate m --top-p 2", "'--top-p <PROBABILITY>': expected a probability in (0, 1]"),
        ("generate m --top-p 0", "'--top-p <PROBABILITY>': expected a probability in (0, 1]"),
        ("generate m --temperature -1", "'--temperature <NUMBER>': expected a number >= 0"),
        ("generate m --top-k -1", "'--top-k <COUNT>': -1 is not in 0.."),
        ("launch --grace -1 -- true", "'--grace <SECONDS>': -1 is not in 0.."),
    ] {
        run_line(words).assert_usage_error(expected);
    }
}

#[test]
fn contradicting_rank_variables_are_rejected() {
    let env = |variables: &str| {
        let variables = variables.split(' ').filter_map(|variable| variable.split_once('='));
        run_command(command().arg("env").envs(variables))
    };
    env("RANK=3 WORLD_SIZE=2").assert_error("RANK=3 and WORLD_SIZE=2 contradict each other");
    let local = env("RANK=1 WORLD_SIZE=2 LOCAL_RANK=5 LOCAL_WORLD_SIZE=2");
    local.assert_error("LOCAL_RANK=5 and LOCAL_WORLD_SIZE=2 contradict each other");
    env("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1").assert_ok("export RANK=0");
}

#[test]
fn nodes_of_a_described_system_have_names_instead_of_addresses() {
    let two = run_line("env --system lumi-g -N 2");
    assert!(!two.err.contains("two nodes"), "{}", two.err);
    two.assert_ok(["export MASTER_ADDR=node1-hsn0;", "export NCCL_SOCKET_IFNAME=hsn0,"]);
    let one = run_line("env --system lumi-g");
    let note = "the network settings of LUMI-G apply from two nodes on (-N 2)";
    assert!(!one.assert_stderr(note).ok().contains("NCCL_SOCKET_IFNAME="));
}

#[test]
fn failing_env_stops_the_script_that_evaluates_it() {
    for shell in ["bash", "sh", "dash", "zsh", "ksh", "busybox"] {
        for eval in ["eval \"$(\"$0\" env OPTIONS)\"", "eval $(\"$0\" env OPTIONS)"] {
            for options in ["--rank 999999", "--no-such-option", "--hostfile /no/such/file"] {
                let script = format!("{}; echo continued", eval.replace("OPTIONS", options));
                let mut args = vec!["-c", &script, REGATTA];
                if shell == "busybox" {
                    args.insert(0, "sh");
                }
                let Some(run) = run_if_installed(shell, &args, "") else { continue };
                assert_eq!((run.code, run.out.as_str()), (Some(1), ""), "{shell}: {run:?}");
                assert_contains(&run.err, "error:");
            }
        }
    }
    // An interactive shell gets a status, and stays.
    let script = "eval \"$(\"$0\" env --rank 999999)\"; echo status $?";
    if let Some(run) = run_if_installed("bash", &["--norc", "-ic", script, REGATTA], "") {
        assert_contains(&run.out, "status 1");
    }
    // Programs get no shell command.
    assert_eq!(run_line("env --json --rank 999999").assert_code(1).out, "");
}

#[test]
fn ranks_of_other_launchers_are_not_replaced_silently() {
    let env = |variables: &str| {
        let variables = variables.split(' ').filter_map(|variable| variable.split_once('='));
        run_command(command().args(["env", "--system", "dgx-h100"]).envs(variables))
    };
    // A pod of Kubeflow's training operator, and a worker of Ray Train.
    let kubeflow = "PET_NNODES=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=1";
    env(kubeflow).assert_error(["RANK=1, set by Kubeflow, contradicts the plan", "--hostfile"]);
    let ray = "RAY_JOB_ID=01000000 RANK=0 WORLD_SIZE=4 LOCAL_RANK=0";
    env(ray).assert_error("WORLD_SIZE=4, set by Ray, contradicts the plan, which has WORLD_SIZE=8");
    env("RANK=0 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=8").assert_ok("export RANK=0;");
    let launch = clean_env(Command::new(REGATTA))
        .args(["launch", "-n", "1", "--dry-run", "--", "true"])
        .env("WORLD_SIZE", "16")
        .output();
    CommandOutput::from(launch.unwrap()).assert_error("WORLD_SIZE=16, set by another launcher");
    // The workers of Ray Train, each of which launches a job of as many ranks.
    for rank in ["0", "1"] {
        let launch = clean_env(Command::new(REGATTA))
            .args(["launch", "-n", "2", "--oversubscribe", "--dry-run", "--", "true"])
            .envs([("RAY_JOB_ID", "01000000"), ("RANK", rank), ("WORLD_SIZE", "2")])
            .output();
        let error = [&*format!("this process is rank {rank} of 2 already"), "set by Ray"];
        CommandOutput::from(launch.unwrap()).assert_error(error);
    }
}

#[test]
fn variables_of_the_user_are_kept_and_named() {
    let run = |variables: &[(&str, &str)]| {
        run_command(
            command().args(["env", "--system", "lumi-g", "-N", "2"]).envs(variables.to_vec()),
        )
    };
    let user = [
        ("OMP_NUM_THREADS", "4"),
        ("MIOPEN_USER_DB_PATH", "/scratch/miopen"),
        ("NCCL_SOCKET_IFNAME", "hsn0"),
        ("HF_MODULES_CACHE", "/scratch/hf"),
    ];
    let kept = run(&user);
    for (name, value) in user {
        assert_contains(&kept.err, &*format!("{name}={value} is already set and kept"));
        assert_contains(&kept.out, &*format!("export {name}={value}; : \"already set, and kept"));
    }
    let text = kept.ok();
    assert!(!text.contains("HF_DATASETS_CACHE"), "/tmp of LUMI is memory: {text}");
    // Values that regatta has set itself are replaced.
    let own = text.lines().find_map(|line| line.strip_prefix("export REGATTA_ENV=")).unwrap();
    let own = own.split(';').next().unwrap();
    let nested = run(&[("REGATTA_ENV", own), ("RANK", "7"), ("WORLD_SIZE", "3")]);
    nested.assert_ok(["export RANK=0;", "export OMP_NUM_THREADS=7;"]);
}

/// Runs a program with this standard input; `None` if it is not installed.
fn run_if_installed(program: &str, args: &[&str], input: &str) -> Option<CommandOutput> {
    let mut command = clean_env(Command::new(program));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap().into())
}

#[test]
fn completion_scripts_are_valid_in_their_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run_line(&format!("completions {shell}"));
        let script = script.assert_ok(["ranks-per-node", "openmpi", "framework"]);
        if let Some(checked) = run_if_installed(shell, &["-n"], &script) {
            assert_eq!(checked.code, Some(0), "{shell}: {checked:?}");
        }
    }
}

#[test]
fn manual_pages_render() {
    for words in ["man", "man map", "man env", "man completions", "man man"] {
        let page = run_line(words).ok();
        assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{words}: {page:.80}");
        assert!(page.contains(".TH ") && page.contains(".SH NAME"), "{words}");
        let options = ["-man", "-Tutf8", "-ww", "-P-cbou"];
        let Some(rendered) = run_if_installed("groff", &options, &page) else { continue };
        assert_eq!(rendered.err, "", "{words}");
        assert!(rendered.ok().contains("SYNOPSIS"), "{words}");
    }
    let map = run_line("man map").ok();
    assert!(map.contains("ranks\\-per\\-node") && map.contains("frontier"), "options and examples");
}

/// Commands that print, one per output path.
const PRINTING: [&str; 15] = [
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
    "--version",
    "--help",
    "help train",
];

#[test]
fn closed_pipe_is_not_an_error() {
    for words in PRINTING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = run_command(command().args(words.split_whitespace()).stdout(writer));
        assert!(!run.err.contains("panicked"), "{words}: {}", run.err);
        assert!(!run.err.contains("error:"), "{words}: {}", run.err);
        let check = words.contains("--check");
        assert!(run.code == Some(0) || check && run.code == Some(1), "{words}: {run:?}");
    }
    let shell = |script: &str| run_if_installed("sh", &["-c", script, REGATTA], "").unwrap();
    let run = shell("\"$0\" env --system lumi-g -N 2 | head -1");
    assert_eq!((run.out.lines().count(), &run.err[..]), (1, ""));
    let run = shell("\"$0\" map --system lumi-g --json | head -c 10");
    assert_eq!((&run.out[..], &run.err[..]), ("{\"machines", ""));
}

#[test]
fn full_disk_is_an_error() {
    for words in PRINTING {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let run = run_command(command().args(words.split_whitespace()).stdout(full));
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
    let list: Vec<Variable> = run_line(&format!("{words} --json")).json();
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
            let run = run_if_installed(shell, &["-c", &script, REGATTA], "");
            let Some(run) = run else { continue };
            assert_eq!(run.err, "", "{shell}: {script}");
            let set: Vec<(&str, &str)> =
                run.out.lines().filter_map(|l| l.split_once('=')).collect();
            for (name, value) in &expected {
                assert!(set.contains(&(name, value)), "{shell} {script}: {name}");
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
        let command = format!("set -e; {inner}; printf %s \"$MASTER_ADDR\"");
        let run = run_if_installed(name, &["-c", &command, "x", &script], "");
        let Some(run) = run else { continue };
        assert_eq!((&run.out[..], &run.err[..], run.code), (evil, "", Some(0)), "{name}");
    }
}

#[test]
fn without_excludes_variables() {
    let words = "env --system lumi-g -N 2 --master-addr a --master-port 1";
    let all = variables(words);
    let fewer = variables(&format!("{words} --without NCCL_NET_GDR_LEVEL --without NCCL_NET"));
    assert!(all.contains_key("NCCL_NET_GDR_LEVEL"));
    assert_eq!(fewer.len(), all.len() - 2);
}

#[test]
fn environments_match_the_golden_files() {
    for framework in ["torch", "deepspeed", "accelerate", "horovod", "jax"] {
        let mut text = String::new();
        for system in ["lumi-g", "perlmutter"] {
            for nodes in [1, 2] {
                // The last rank, whose indices are nonzero.
                let rank = if system == "lumi-g" { 8 * nodes - 1 } else { 4 * nodes - 1 };
                let words = format!("--system {system} -N {nodes} --framework {framework}");
                let master = "--master-addr 10.0.0.1 --master-port 29500";
                let run = run_line(&format!("env {words} --rank {rank} {master}"));
                write!(text, "# {system}, nodes: {nodes}, rank {rank}\n{}", run.err).unwrap();
                writeln!(text, "{}", run.ok()).unwrap();
            }
        }
        golden(&format!("env-{framework}.txt"), &text);
    }
}

#[test]
fn help_after_help_is_accepted() {
    let help = run_line("help").ok();
    assert_eq!(run_line("help --help").ok(), help);
    assert_eq!(run_line("help map --help").ok(), run_line("help map").ok());
}

#[test]
fn map_writes_one_document_to_standard_output() {
    for words in ["--json --svg -", "--json --dump -", "--format srun --svg -", "--dump - --svg -"]
    {
        let error = "cannot both write to standard output";
        run_line(&format!("map --system lumi-g {words}")).assert_error(error);
    }
}

#[test]
fn unused_gpus_are_reported() {
    let map =
        run_line("map --system lumi-g -n 6").assert_stderr("lumi-g: 2 of 8 GPUs are unused: 6-7");
    map.ok();
    let all = run_line("map --system lumi-g");
    assert!(!all.err.contains("GPUs are unused"), "{}", all.err);
    map_json("--system lumi-g -n 6").assert_warning("idle-gpus");
}

#[test]
fn check_takes_the_rank_from_the_environment() {
    let check = |rank: &str, size: &str| {
        let mut check = command();
        check.args(["map", "--check", "-n", "2", "--oversubscribe", "--json"]);
        run_command(check.env("RANK", rank).env("WORLD_SIZE", size))
    };
    let report: Value = from_json(&check("1", "2").out);
    assert_eq!(report["rank"], 1, "{report}");
    check("1", "4").assert_error("WORLD_SIZE is 4, but the plan has 2 ranks: pass -n 4");
}
