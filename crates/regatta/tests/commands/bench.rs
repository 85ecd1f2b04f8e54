//! `regatta bench` on this machine: measuring, output, result files and comparisons. The measured
//! values do not matter here.

use regatta_measure::read::read;
use regatta_model::run_folder::RunEvent;
use regatta_model::{BenchResult, Measurement, document};
use regatta_observe::read::{Followed, Run, Source};
use regatta_testbed::{REQUIRE_LIBFABRIC, assert_contains, skip};
use serde_json::Value;

use crate::support::bench::{assert_complete_and_correct, bench, load_result, rows, run};
use crate::support::process::{launch_regatta, rank_log, run_command};
use crate::support::{TempDir, from_json};

/// A value with two decimals, or fewer if they do not fit into the column: a busy machine may take long.
fn printed(value: f64) -> String {
    let fixed = [2, 1].map(|decimals| format!("{value:.decimals$}"));
    fixed.into_iter().find(|text| text.len() <= 7).unwrap_or_else(|| format!("{value:.0}"))
}

/// The rows of a result, as a table prints them.
fn printed_rows(result: &BenchResult) -> Vec<(String, u64, Vec<Option<String>>)> {
    let two = |value: Option<f64>| value.map(printed);
    let values = |one: &Measurement| {
        [two(one.time_us), two(one.busbw), one.wrong.map(|wrong| wrong.to_string())]
    };
    let mut all = Vec::new();
    for table in &result.tables {
        for row in &table.rows {
            let both = [&row.out_of_place, &row.in_place].into_iter().flatten();
            let both = both.flat_map(values).collect();
            all.push((table.operation.to_string(), row.size_bytes, both));
        }
    }
    all
}

#[test]
fn all_operations_are_correct_and_results_round_trip() {
    let folder = TempDir::new();
    let table = run(&folder, "all -b 8 -e 4K -f 8 --ranks 3 -n 3 --run-dir run").ok();
    let result = load_result(&folder, "run/bench.json");
    assert_complete_and_correct(&result, 9, 3);
    // Chunked operations skip 8 bytes on three ranks.
    assert_eq!(rows(&result).len(), 4 * 4 + 5 * 3);

    // The table has nccl-tests' format and precision.
    let from_table = read("table.txt", &table).unwrap();
    assert_eq!(from_table.len(), 9, "one nccl-tests run per operation");
    let all: Vec<_> = from_table.iter().flat_map(printed_rows).collect();
    assert_eq!(all, printed_rows(&result));
    assert!(from_table.iter().all(|one| one.complete && one.shape.ranks == Some(3)));

    // JSON and CSV are lossless.
    let again = run(&folder, "read run/bench.json --json").ok();
    assert_eq!(document::from_json::<BenchResult>(&again).unwrap(), result);
    let csv = run(&folder, "read run/bench.json --csv").ok();
    folder.write("run.csv", &csv);
    let again = run(&folder, "read run.csv --csv").ok();
    assert_eq!(again, csv);
}

#[test]
fn results_are_printed_in_the_requested_format() {
    let folder = TempDir::new();
    let json = run(&folder, "all-reduce -b 8 -e 64 -f 8 --ranks 2 -n 3 --json --out own.json").ok();
    let result: BenchResult = document::from_json(&json).unwrap();
    assert_complete_and_correct(&result, 1, 2);
    assert_eq!(load_result(&folder, "own.json"), result);
    let words = "all-reduce -b 8 -e 4K -f 8 --ranks 2 -n 3 --csv --out -";
    let both = run(&folder, words).ok();
    assert_eq!(both.matches("\"complete\"").count(), 1, "printed once: {both}");
    let words = "all-reduce -b 8 -e 64 -f 8 --ranks 2 -n 3 --json --out -";
    assert_complete_and_correct(&document::from_json(&run(&folder, words).ok()).unwrap(), 1, 2);
    let csv = "broadcast -b 8 -e 64 -f 8 --ranks 2 -n 3 -r 1 --csv --run-dir run --label mine";
    let csv = run(&folder, csv).ok();
    let (head, lines) = csv.split_once('\n').unwrap();
    assert!(head.contains("size_bytes") && lines.lines().count() == 4, "{csv}");
    let result = load_result(&folder, "run/bench.json");
    assert_eq!((result.label.as_str(), result.tables[0].root), ("mine", Some(1)));
    run(&folder, "all-reduce -b 8 -e 8 --ranks 2 -n 3 -I").assert_ok("i_p99");
}

#[test]
fn collectives_are_measured_over_a_net_plugin() {
    let folder = TempDir::new();
    // Cargo builds it beside this program.
    let plugin = std::env::current_exe().unwrap().with_file_name("libnccl_net_fake.so");
    let words = format!("all -b 8 -e 64K -f 8 --ranks 2 -n 3 --net-plugin {}", plugin.display());
    let table = run(&folder, &format!("{words} --run-dir newest")).ok();
    assert_contains(&table, "# Transport: net plug-in: Fake (v11), 2 NICs: fake0, fake1");
    let result = load_result(&folder, "newest/bench.json");
    assert_complete_and_correct(&result, 9, 2);
    assert_eq!(result.backend.as_deref(), Some("net-plugin"));
    assert_eq!(result.versions["net-plugin"], "Fake (v11), 2 NICs: fake0, fake1");

    let mut old = bench(&folder, &format!("{words} --run-dir old"));
    run_command(old.env("REGATTA_NET_PLUGIN_VERSION", "8")).assert_ok("Fake (v8)");
    let mut failing = bench(&folder, &format!("{words} --run-dir failing"));
    let failed = run_command(failing.env("NCCL_NET_FAKE_FAIL", "listen"));
    let expected = "cannot use the net plug-in: listen of the net plug-in Fake (v11) failed";
    failed.assert_code(1).assert_stderr(expected);
    // Plug-ins read variables of NCCL, which a sweep may set.
    let swept = "--run-dir swept --sweep NCCL_NET_FAKE_DEVICES=1,2";
    run(&folder, &format!("{words} {swept}")).assert_ok("best setting");
}

/// Whether libfabric has a provider; otherwise prints that the test is skipped, or fails if it is required.
fn has_provider(provider: &str) -> bool {
    let available = regatta_fabric::available_providers();
    let is_provider = |name: &String| name.split([';', '/']).next() == Some(provider);
    let is_available = available.as_ref().is_ok_and(|all| all.iter().any(is_provider));
    if !is_available {
        skip(REQUIRE_LIBFABRIC, format_args!("no provider {provider}: {available:?}"));
    }
    is_available
}

/// The whole way: the plug-in of this program, libfabric, and both of its threads.
#[test]
fn collectives_are_measured_over_the_network_plugin() {
    let folder = TempDir::new();
    for provider in ["tcp", "shm"].into_iter().filter(|provider| has_provider(provider)) {
        let words = "all -b 8 -e 1M -f 64 --ranks 2 -n 2 --net-plugin regatta --run-dir run";
        let mut command = bench(&folder, words);
        command.env("REGATTA_FABRIC", provider).env("REGATTA_NET_THREADS", "2");
        let output = run_command(command.env("NCCL_SOCKET_IFNAME", "lo"));
        output.assert_ok("# Transport: net plug-in: Regatta (v11), 1 NIC: ");
        assert_complete_and_correct(&load_result(&folder, "run/bench.json"), 9, 2);
        std::fs::remove_dir_all(folder.join("run")).unwrap();
    }
}

#[test]
fn only_rank_0_of_a_launched_job_prints() {
    let folder = TempDir::new();
    let words = "bench all-reduce -J own.json -b 8 -e 64 -f 8 -n 3";
    let launch_output = run_command(&mut launch_regatta(&folder, "-n 2", words)).ok();
    let result = load_result(&folder, "own.json");
    assert_complete_and_correct(&result, 1, 2);
    for text in [rank_log(&folder, "run", 0, "out"), launch_output] {
        let found = read("table", &text).unwrap();
        assert_eq!(printed_rows(&found[0]), printed_rows(&result), "also with rank labels");
    }
    assert_eq!(rank_log(&folder, "run", 1, "out"), "", "only rank 0 prints");
}

#[test]
fn all_host_backends_are_correct() {
    let folder = TempDir::new();
    let backends =
        ["--backend host", "--backend host -R 1", "--backend tcp", "--backend auto -c 2"];
    for (number, options) in backends.iter().enumerate() {
        let sizes = "-b 8 -e 64K -f 128 -n 2 -w 1 --ranks 2";
        run(&folder, &format!("all {sizes} {options} --run-dir {number}")).ok();
        let result = load_result(&folder, &format!("{number}/bench.json"));
        assert_complete_and_correct(&result, 9, 2);
        let backend = if options.contains("tcp") { "tcp" } else { "host" };
        assert_eq!(result.backend.as_deref(), Some(backend), "{options}");
        let transport = if backend == "tcp" { "TCP" } else { "shared memory" };
        assert!(result.transport.unwrap().starts_with(transport), "{options}");
    }
    let types = "-d all -o all --backend host --run-dir types";
    run(&folder, &format!("all-reduce -b 64 -e 64 -n 2 --ranks 2 {types}")).ok();
    let result = load_result(&folder, "types/bench.json");
    assert_complete_and_correct(&result, 1, 2);
    assert_eq!(result.tables.len(), 9 * 5);
}

#[test]
fn libfabric_backend_is_correct() {
    if !has_provider("tcp") {
        return;
    }
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 4K -f 8 -n 2 --ranks 2 --backend libfabric --run-dir run";
    run_command(bench(&folder, words).env("REGATTA_FABRIC", "tcp")).ok();
    let result = load_result(&folder, "run/bench.json");
    assert_complete_and_correct(&result, 1, 2);
    assert!(result.versions["libfabric"].starts_with("libfabric: tcp"), "{:?}", result.versions);
    assert_eq!(result.settings["REGATTA_FABRIC"], "tcp");
}

#[test]
fn a_tuning_table_is_written_and_used() {
    let folder = TempDir::new();
    let words = "all-reduce --tune table.json -b 8 -e 64K -f 64 -n 2 --ranks 2";
    run(&folder, words).assert_code(0).assert_stderr("REGATTA_TUNING=table.json");
    assert_contains(from_json::<Value>(&folder.read("table.json")).to_string(), "all-reduce");
    let words = "all-reduce -b 8 -e 64K -f 64 -n 2 --ranks 2 --backend tcp --run-dir run";
    run_command(bench(&folder, words).env("REGATTA_TUNING", "table.json")).ok();
    assert_complete_and_correct(&load_result(&folder, "run/bench.json"), 1, 2);
    let words = words.replace("run-dir run", "run-dir none");
    let missing = run_command(bench(&folder, &words).env("REGATTA_TUNING", "none.json"));
    missing.assert_code(1).assert_stderr("REGATTA_TUNING none.json: No such file");
}

#[test]
fn tuning_nccl_without_nccl_is_an_error() {
    let folder = TempDir::new();
    let words = "all-reduce --tune table.txt --backend nccl --ranks 2 --run-dir run";
    let failed = run_command(bench(&folder, words).env("REGATTA_CUDART", "/none/libcudart.so"));
    let failed = failed.assert_code(1).assert_stderr("1 of 60: NCCL's default, round 1");
    failed.assert_stderr("/none/libcudart.so").assert_stderr("cannot measure NCCL's default");
    assert!(folder.read("run/0/case-output.txt").contains("libcudart"));
    assert!(!folder.join("table.txt").exists());
    run(&folder, words).assert_code(1).assert_stderr("run already has results");

    folder.write("other.txt", "not a table");
    let refused = [
        ("all-to-all --tune x --backend nccl", "NCCL has one algorithm for the others"),
        ("all --tune other.txt --backend nccl", "the file exists; choose another name"),
        ("all --tune x --backend nccl -d all", "choose one type (-d)"),
        ("all --tune x --backend nccl --tune-rounds 2", "2 is not in 3..=1000"),
        ("all --tune-channels 1,2", "--tune <FILE>"),
    ];
    for (words, expected) in refused {
        assert_contains(&run(&folder, words).err, expected);
    }
    let set = run_command(bench(&folder, "all --tune x --backend nccl").env("NCCL_PROTO", "LL"));
    set.assert_code(1).assert_stderr("--tune with NCCL sets NCCL_PROTO itself: unset it");
}

#[test]
fn a_sweep_measures_every_setting() {
    let folder = TempDir::new();
    let sweep = "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --run-dir run --plot all.html \
                 --sweep REGATTA_COMM_DEBUG=0,1 FI_OTHER=a,b";
    run(&folder, sweep).assert_ok("best setting");
    let expected = [("0", "a"), ("0", "b"), ("1", "a"), ("1", "b")];
    for (number, (debug, other)) in expected.into_iter().enumerate() {
        let result = load_result(&folder, &format!("run/{number}/bench.json"));
        assert_complete_and_correct(&result, 1, 2);
        let settings = [&result.settings["REGATTA_COMM_DEBUG"], &result.settings["FI_OTHER"]];
        assert_eq!(settings, [debug, other]);
        assert_eq!(result.label, format!("REGATTA_COMM_DEBUG={debug} FI_OTHER={other}"));
    }
    let update = Run::open(&folder.join("run")).unwrap().follow().poll();
    let sizes = |at: usize| {
        let size = |one: &Followed| match (&one.record.event, one.source) {
            (RunEvent::BenchRow { row }, Source::Events { launch, .. }) if launch == at => {
                Some(row.size_bytes)
            }
            _ => None,
        };
        update.records.iter().filter_map(size).collect::<Vec<_>>()
    };
    assert_eq!([0, 1, 2, 3].map(sizes), [[8, 64]; 4]);
    assert_contains(folder.read("all.html"), "REGATTA_COMM_DEBUG=1 FI_OTHER=b");
    let json = run(&folder, "all-reduce -b 8 -e 8 -n 2 --ranks 2 --sweep FI_OTHER=a,b --json");
    let best: Value = json.json();
    assert_eq!(best.as_array().unwrap().len(), 1, "{best}");
    assert_contains(best[0]["setting"].as_str().unwrap(), "FI_OTHER=");
}

#[test]
fn a_sweep_uses_the_default_number_of_ranks() {
    let folder = TempDir::new();
    run(&folder, "all-reduce -b 8 -e 8 -n 2 --run-dir plain").ok();
    let swept = run(&folder, "all-reduce -b 8 -e 8 -n 2 --run-dir swept --sweep FI_OTHER=a");
    assert!(!swept.err.contains("note:"), "{}", swept.err);
    swept.ok();
    let more = "all-reduce -b 8 -e 8 -n 2 --run-dir more --launch=--start-timeout=60";
    run(&folder, more).ok();
    let ranks = load_result(&folder, "plain/bench.json").shape.ranks;
    assert!(ranks >= Some(2));
    for file in ["swept/0/bench.json", "more/bench.json"] {
        assert_eq!(load_result(&folder, file).shape.ranks, ranks, "{file}");
    }
}

#[test]
fn a_scan_doubles_the_nodes_and_saves_all_results() {
    let folder = TempDir::new();
    folder.write("hosts", "one\ntwo\n");
    // A fake ssh: runs the command locally for every host.
    let ssh =
        folder.write("ssh", "while [ \"$1\" != -- ]; do shift; done\nshift 2\nexec sh -c \"$*\"\n");
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks-per-node 1 --hostfile hosts --nodes 2 --scan \
                 --run-dir run -J=all.json";
    // The names of the hosts have no address where the tests have a network of their own.
    let words = format!("{words} --launch \"--master-addr 127.0.0.1 --ssh 'sh {ssh}'\"");
    run(&folder, &words).assert_ok("nodes  time (us)");
    let results =
        ["run/1-nodes/bench.json", "run/2-nodes/bench.json"].map(|file| load_result(&folder, file));
    assert_eq!(results.each_ref().map(|one| one.shape.ranks), [Some(1), Some(2)]);
    assert_eq!(read("all.json", &folder.read("all.json")).unwrap(), results);
}

#[test]
fn sweep_results_are_written_to_stdout_and_file() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir run --csv -Jall.json \
                 --sweep FI_OTHER=a,b";
    let csv = run(&folder, words).ok();
    let results = ["run/0/bench.json", "run/1/bench.json"].map(|file| load_result(&folder, file));
    assert_eq!(csv, regatta_measure::write::csv(&results));
    assert_eq!(read("all.json", &folder.read("all.json")).unwrap(), results);
    assert_eq!(run(&folder, "read all.json --csv").ok(), csv);
    run(&folder, "compare all.json").assert_ok(["FI_OTHER=a", "FI_OTHER=b"]);
}

#[test]
fn output_files_are_checked_before_the_run() {
    let folder = TempDir::new();
    let options = ["-J no/x.json", "--plot no/x.svg", "--tune no/x", "--sweep A=1 -J no/x.json"];
    for options in options {
        let expected = [&options[options.len() - 5..], "cannot create the file: No such file"];
        run(&folder, &format!("all-reduce {options} --ranks 2")).assert_error(expected);
        assert_eq!(folder.names(), [""; 0], "{options}");
    }
    let of_nccl = "regatta-nccl-tuning 1\n";
    std::fs::write(folder.join("nccl.txt"), of_nccl).unwrap();
    run(&folder, "all --tune nccl.txt --ranks 2").assert_error("add --backend nccl (or rccl)");
    assert_eq!(std::fs::read_to_string(folder.join("nccl.txt")).unwrap(), of_nccl);
    run(&folder, "all --tune new.json --tune-channels 2 --ranks 2")
        .assert_error("--tune-channels is for tables of NCCL's tuner");
    run(&folder, "all-reduce -J . --ranks 2")
        .assert_error("-J .: cannot create the file: Is a dir");
}

#[test]
fn invalid_and_unsupported_options_are_usage_errors() {
    let folder = TempDir::new();
    for (words, option) in [
        ("gemm --baseline x.json", "'--baseline'"),
        ("disk --plot x.svg", "'--plot'"),
        ("copy -I", "'-I'"),
        ("send-recv --pairs -I", "'--spread'"),
        ("all-reduce --tune x --plot x.svg", "'--plot <FILE>'"),
        ("all-reduce -t 2 --ranks 3", "'--nthreads <COUNT>'"),
        ("all-reduce -g 2 --ranks 3", "'--ngpus <COUNT>'"),
        ("all-reduce -f 2 -i 8", "'--stepbytes <SIZE>'"),
        ("all-reduce -d float8", "'--datatype <TYPE>'"),
        ("all-reduce -o mul", "'--op <OP>'"),
        ("all-reduce --baseline x --tolerance x", "'--tolerance <PERCENT>'"),
        ("gemm --slower-than x", "'--slower-than <PERCENT>': expected 0% to 100%, such as 10%"),
    ] {
        run(&folder, words).assert_usage_error(option);
    }
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn node_rooflines_are_printed_as_csv() {
    let csv = run(&TempDir::new(), "disk --size 1M --ranks 2 --csv").ok();
    assert_eq!(csv.lines().filter(|line| line.contains(",files/s,")).count(), 2 * 3, "{csv}");
}

#[test]
fn plots_are_well_formed() {
    let folder = TempDir::new();
    run(&folder, "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --plot one.svg --run-dir run").ok();
    run(&folder, "all -b 8 -e 64 -f 8 -n 2 --ranks 2 --plot all.html").ok();
    run(&folder, "send-recv --ranks 3 --pairs --plot pairs.svg --run-dir pairs");
    run(&folder, "read run/bench.json --plot again.svg")
        .assert_code(0)
        .assert_stderr("plot: again.svg");
    for file in ["one.svg", "all.html", "pairs.svg", "again.svg"] {
        let text = folder.read(file);
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let plot = roxmltree::Document::parse_with_options(&text, options)
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(plot.descendants().any(|node| node.tag_name().name() == "svg"), "{file}");
    }
    let pairs = load_result(&folder, "pairs/bench.json").pairs.unwrap();
    assert_eq!(pairs.endpoints.len(), 3);
}

/// Recorded outputs of other programs.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../measure/tests/data");

#[test]
fn results_of_other_programs_are_read_and_compared() {
    let folder = TempDir::new();
    let read = |words: &str, files: &[&str]| {
        let files = files.iter().map(|name| format!("{RECORDED}/{name}"));
        run_command(bench(&folder, words).args(files)).ok()
    };
    let shown = read("read", &["frontier-rccl.txt"]);
    assert!(shown.contains("65536") && shown.contains("37.54"), "{shown:.400}");
    let all = ["versions/v2.19-all_reduce.txt", "osu/osu_latency.txt"];
    let json: Value = from_json(&read("read --json", &all));
    let programs: Vec<&str> =
        json.as_array().unwrap().iter().filter_map(|one| one["program"].as_str()).collect();
    assert_eq!(programs, ["nccl-tests", "osu"]);

    let file = "versions/v2.19-all_reduce.txt";
    assert_contains(read("compare --labels one,other", &[file, file]), ["one", "other"]);
    let json: Value = from_json(&read("compare --json", &[file, file]));
    let rows = json[0]["rows"].as_array().unwrap();
    let same = |ratio: &Value| ratio.is_null() || ratio.as_f64() == Some(1.0);
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row["ratios"].as_array().unwrap().iter().all(same)), "{json}");
}

/// A result with all values `times` times as fast.
fn faster(result: &BenchResult, times: f64) -> BenchResult {
    let mut faster = result.clone();
    let rows = faster.tables.iter_mut().flat_map(|table| &mut table.rows);
    for one in rows.flat_map(|row| [&mut row.out_of_place, &mut row.in_place]).flatten() {
        one.time_us = one.time_us.map(|time| time / times);
        one.algbw = one.algbw.map(|bandwidth| bandwidth * times);
        one.busbw = one.busbw.map(|bandwidth| bandwidth * times);
    }
    faster
}

#[test]
fn a_baseline_check_reports_every_regression() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 4K -f 8 -n 5 --ranks 2";
    run(&folder, &format!("{words} --out before.json")).ok();
    let before = load_result(&folder, "before.json");
    // Extreme baselines, so that noise does not decide.
    for (file, times) in [("slow.json", 1e-6), ("fast.json", 1e6)] {
        folder.write(file, document::to_json(&faster(&before, times)).unwrap());
    }
    let good = run(&folder, &format!("{words} --baseline slow.json --tolerance 25%"));
    let summary = "no regression against slow.json: 8 values within 25%";
    good.assert_code(0).assert_stderr(summary);
    let bad = run(&folder, &format!("{words} --baseline fast.json --tolerance 25%"));
    let sizes = ["of 8 B,", "of 64 B,", "of 512 B,", "of 4 KiB (4096 B),"];
    let summary = "baseline fast.json: 8 of 8 values regressed or missing";
    bad.assert_code(1).assert_stderr(summary).assert_stderr(sizes);
    let other = run(&folder, &format!("{} --baseline slow.json", words.replace("4K", "64")));
    other.assert_code(1).assert_stderr("not measured in this run");
}

#[test]
fn variables_that_no_rank_reads_are_refused_before_the_first_run() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir run --sweep";
    let error = "--sweep NCCL_ALGO: backend host ignores variables of NCCL";
    for backend in ["host", "auto"] {
        // Of a machine with GPUs, none is visible.
        let words = format!("{words} NCCL_ALGO=Ring,Tree --backend {backend}");
        let mut command = bench(&folder, &words);
        command.envs([("CUDA_VISIBLE_DEVICES", ""), ("HIP_VISIBLE_DEVICES", "")]);
        run_command(&mut command).assert_error(error);
    }
    let unknown = run(&folder, &format!("{words} REGATTA_FABRICS=off,auto"));
    unknown.assert_error("--sweep: unknown variable REGATTA_FABRICS: did you mean REGATTA_FABRIC?");
    assert!(!folder.exists("run"));
}

#[test]
fn compared_results_are_named_by_their_files() {
    let folder = TempDir::new();
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks 2";
    for out in ["one.json", "two.json --label mine", "new/one.json"] {
        std::fs::create_dir_all(folder.path().join("new")).unwrap();
        run(&folder, &format!("{words} -J {out}")).ok();
    }
    let header = |files: &str| {
        let text = run(&folder, &format!("compare {files}")).ok();
        text.lines().find(|line| line.contains("ratio")).unwrap_or_default().to_owned()
    };
    assert_contains(header("one.json two.json"), ["one", "mine"]);
    assert_contains(header("one.json new/one.json"), ["one", "new/one"]);
    assert_contains(header("one.json one.json"), ["one #1", "one #2"]);
    let interrupted = folder.read("one.json").replace("\"complete\": true", "\"complete\": false");
    folder.write("half.json", interrupted);
    assert_contains(header("one.json half.json"), "half (incomplete)");
}

#[test]
fn in_place_comparisons_are_plotted_in_place() {
    let folder = TempDir::new();
    run(&folder, "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 -J a.json").ok();
    run(&folder, "compare a.json a.json --in-place --plot a.svg").assert_ok("in-place");
    assert_contains(folder.read("a.svg"), "all-reduce, in-place, by size");
}

#[test]
fn binary_files_are_not_read_as_results() {
    let folder = TempDir::new();
    folder.write("random", b"a\tb\n1\t2\nc\x00\td\n\xffe\tf\n");
    run(&folder, "read random").assert_error("random, line 3: byte 0x00 is not text");
    folder.write("words", "one\ttwo\nthree\tfour\n");
    run(&folder, "read words").assert_error("words: found no table");
    folder.write("empty", "\n");
    run(&folder, "read empty").assert_error("empty is empty: expected a result");
}
