//! `regatta net-log`: reports on recorded logs of NCCL and RCCL.

use std::io::Write;
use std::process::Stdio;

use regatta_testbed::wait_until;
use serde_json::Value;

use crate::support::process::{Process, run_command, run_in, run_job, run_result, shell_job};
use crate::support::{CommandOutput, TempDir, command, golden, run_line};

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
        "nccl-2.28-regatta-cxi",
        "nccl-2.28-regatta-not-used",
    ] {
        golden(&format!("net-log-{name}.txt"), &net_log("", name).ok());
    }
}

#[test]
fn required_network_decides_the_exit_status() {
    net_log("--require efa/GDRDMA", "nccl-2.24-efa").assert_ok("required efa/GDRDMA: all ranks");
    let ours = net_log("--require cxi/GDRDMA", "nccl-2.28-regatta-cxi");
    ours.assert_ok("required cxi/GDRDMA: all ranks");
    let failed = net_log("--require cxi/GDRDMA", "nccl-2.28-regatta-not-used").assert_code(1);
    assert!(failed.out.contains("required cxi/GDRDMA: both ranks: NET/Socket, not cxi/GDRDMA"));
    assert!(failed.out.contains("fix: make libfabric and the devices of its provider"));
    let failed = net_log("--require cxi", "nccl-2.28-plugin-broken").assert_code(1);
    assert!(failed.out.contains("required cxi: both ranks: NET/Socket, not cxi"));
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

/// A script that logs as two nodes with one rank each would, over this network (`IB`, `Socket`), and the
/// channel's flags.
fn fake_nccl(network: &str, flags: &str) -> String {
    format!(
        r#"h="node$RANK:$$:$$ [0] NCCL INFO "; p=$((1 - RANK)); exec 3> "$NCCL_DEBUG_FILE"
        echo "${{h}}NCCL version 2.28.9+cuda13.0" >&3
        echo "${{h}}Using network {network}" >&3
        echo "${{h}}comm 0x1 rank $RANK nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0" >&3
        echo "${{h}}Channel 00/0 : $p[0] -> $RANK[0] [receive] via NET/{network}/0{flags}" >&3
        echo "${{h}}Channel 00/0 : $RANK[0] -> $p[0] [send] via NET/{network}/0{flags}" >&3
        echo "${{h}}Connected all rings, use ring PXN 0 GDR 1" >&3
        "#
    )
}

#[test]
fn check_net_reports_when_all_ranks_have_connected() {
    let folder = TempDir::new();
    let script = fake_nccl("IB", "/GDRDMA") + "while ! test -e go; do sleep 0.05; done";
    let options = "-n 2 --run-dir run --check-net --require-net ib/GDRDMA";
    let job = Process::spawn(&folder, &mut shell_job(&folder, options, &script));
    let verdict = "GOOD: 2 ranks on 2 nodes use NET/IB with GPUDirect RDMA";
    wait_until("the report", || job.stderr().contains(verdict));
    folder.write("go", "");
    let output = job.wait().assert_code(0);
    assert!(output.out.is_empty(), "the log is not on the terminal: {}", output.out);
    assert!(output.err.contains("all ranks have connected\n"), "{}", output.err);
    assert_eq!(output.err.matches(verdict).count(), 1, "{}", output.err);
    let report: Value = serde_json::from_str(&folder.read("run/net.json")).unwrap();
    assert_eq!(report["requirement"]["satisfied"], true);
    let environment = folder.read("run/environment.json");
    assert!(
        environment.contains("INIT,BOOTSTRAP,NET,ENV") && environment.contains("net/rank-1.log")
    );
    run_in(&folder, "net-log run").assert_ok(verdict);
}

#[test]
fn require_net_ends_a_job_on_the_wrong_network_with_the_fix() {
    let folder = TempDir::new();
    let script = fake_nccl("Socket", "") + "exec sleep 1000";
    let options = "-n 2 --run-dir run --require-net ofi --max-restarts 3";
    let output = run_job(&folder, options, &script).assert_code(1);
    let reason = "--require-net ofi: both ranks: NET/Socket, not ofi; fix: ";
    assert!(output.err.contains(reason), "{}", output.err);
    assert!(output.err.contains("NCCL_NET_PLUGIN"), "{}", output.err);
    let result = run_result(&folder, "run");
    assert_eq!((result.exit_code, result.restarts), (1, 0));
    assert!(result.reason.contains(reason) && result.failure.is_none(), "{result:?}");
}

#[test]
fn a_job_without_proof_fails_only_if_a_network_is_required() {
    let folder = TempDir::new();
    let output = run_job(&folder, "-n 1 --run-dir a --check-net", "true").assert_code(0);
    assert!(output.err.contains("NOT PROVEN: no record of NCCL or RCCL"), "{}", output.err);
    let output = run_job(&folder, "-n 1 --run-dir b --require-net ib", "true").assert_code(1);
    let reason = "--require-net ib: the log has no record of NCCL or RCCL";
    assert!(output.err.contains(reason), "{}", output.err);
    assert!(run_result(&folder, "b").reason.contains(reason));
    // The failure of a rank is reported as such.
    run_job(&folder, "-n 1 --run-dir c --require-net ib", "exit 7").assert_code(7);
}

#[test]
fn own_debug_settings_are_kept() {
    let folder = TempDir::new();
    let run = |options: &str, name: &str, value: &str| {
        let options = format!("-n 1 {options}");
        run_command(
            shell_job(&folder, &options, "echo $NCCL_DEBUG,$NCCL_DEBUG_FILE").env(name, value),
        )
    };
    let output = run("--check-net", "NCCL_DEBUG_FILE", "/tmp/mine").assert_code(0);
    assert!(output.out.contains("] ,/tmp/mine"), "{}", output.out);
    assert!(output.err.contains("NCCL_DEBUG_FILE=/tmp/mine is set"), "{}", output.err);
    let output = run("--check-net", "NCCL_DEBUG", "TRACE").assert_code(0);
    assert!(output.out.contains("] TRACE,") && output.out.contains("/net/rank-0.log"));
    run("--require-net ib", "NCCL_DEBUG", "WARN").assert_error("NCCL_DEBUG=WARN logs too little");
}
