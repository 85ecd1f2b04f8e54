//! `regatta net-log`: reports on recorded logs of NCCL and RCCL.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use support::process::run_in;
use support::{CommandOutput, TempDir, command, golden, run_line};

fn log(name: &str) -> String {
    format!("{}/../observe/tests/logs/{name}.log", env!("CARGO_MANIFEST_DIR"))
}

fn net_log(words: &str, name: &str) -> CommandOutput {
    run_line(&format!("net-log {words} {}", log(name)))
}

#[test]
fn reports_have_verdict_groups_plugin_and_fixes() {
    for name in [
        "lumi-management-network",
        "nccl-2.28-plugin-broken",
        "rccl-2.21-cxi-gdr-off",
        "rccl-2.30-one-rank-differs",
        "nccl-2.24-efa",
    ] {
        golden(&format!("net-log-{name}.txt"), &net_log("", name).ok());
    }
}

#[test]
fn required_network_decides_the_exit_status() {
    net_log("--require efa/GDRDMA", "nccl-2.24-efa").assert_ok("required efa/GDRDMA: all ranks");
    let failed = net_log("--require cxi", "nccl-2.28-plugin-broken").assert_code(1);
    assert!(failed.out.contains("required cxi: both ranks: uses NET/Socket, not cxi"));
    assert!(failed.out.contains("fix: the plug-in needs a library that is missing"));
    net_log("--require ib/fast", "nccl-2.24-efa")
        .assert_usage_error("a network's name, as ib, ofi");
}

#[test]
fn json_has_a_format_and_every_rank() {
    let json: Value = net_log("--json", "rccl-2.30-one-rank-differs").json();
    assert_eq!(json["format"], "regatta-net-log/1");
    assert_eq!(json["level"], "failure");
    assert_eq!(json["ranks"].as_array().unwrap().len(), 3);
    let transport = &json["ranks"][0]["transports"][0];
    assert_eq!((&transport["name"], &transport["gdr"]), (&"Libfabric".into(), &true.into()));
    assert_eq!((transport["channels"].as_u64(), transport["line"].as_u64()), (Some(1), Some(6)));
}

#[test]
fn standard_input_and_folders_are_read() {
    let text = std::fs::read(log("nccl-2.18-roce")).unwrap();
    let mut child = command();
    child.args(["net-log", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.starts_with("GOOD: 2 ranks on 2 nodes use NET/IB with GPUDirect RDMA\n"), "{out}");

    let folder = TempDir::new();
    std::fs::create_dir_all(folder.join("run/net")).unwrap();
    run_in(&folder, "net-log run").assert_error("run has no rank-N.log");
    folder.write("run/net/rank-7.log", "n0:1:1 [0] NCCL INFO Using network IB\n");
    run_in(&folder, "net-log run").assert_ok(["NOT PROVEN", "NCCL has chosen NET/IB"]);
    let json: Value = run_in(&folder, "net-log run --json").json();
    assert_eq!(json["ranks"][0]["rank"], 7);
}

#[test]
fn files_without_records_and_missing_files_are_errors() {
    let folder = TempDir::new();
    folder.write("job.out", "epoch 1\n");
    let output = run_in(&folder, "net-log job.out").assert_code(1);
    assert!(output.out.contains("NOT PROVEN: no record of NCCL or RCCL"), "{}", output.out);
    assert!(output.out.contains("set NCCL_DEBUG=INFO"), "{}", output.out);
    run_in(&folder, "net-log nothing.out").assert_error("cannot read nothing.out");
}
