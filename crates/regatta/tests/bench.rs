//! `regatta bench` on this machine: what it measures, prints, keeps and refuses. No figure matters
//! here, only what becomes of them.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::path::Path;

use regatta_measure::read::read;
use regatta_model::{BenchResult, Measurement, document};
use support::bench::{assert_right, bench, kept, rows, run};
use support::job::{ended, log};
use support::{Folder, command};

/// What a table shows of a row: all but how many digits there are.
fn shown(result: &BenchResult) -> Vec<(String, u64, Vec<Option<String>>)> {
    let two = |figure: Option<f64>| figure.map(|figure| format!("{figure:.2}"));
    let figures = |one: &Option<Measurement>| match one {
        Some(one) => {
            vec![two(one.time_us), two(one.busbw), one.wrong.map(|wrong| wrong.to_string())]
        }
        None => Vec::new(),
    };
    let mut all = Vec::new();
    for table in &result.tables {
        for row in &table.rows {
            let both = [figures(&row.out_of_place), figures(&row.in_place)].concat();
            all.push((table.operation.name().to_owned(), row.size_bytes, both));
        }
    }
    all
}

#[test]
fn all_operations_are_measured_and_right_and_read_back_as_they_were() {
    let folder = Folder::new();
    let table = run(&folder, "all -b 8 -e 4K -f 8 --ranks 3 -n 3 --run-dir run").ok();
    let result = kept(&folder, "run/bench.json");
    assert_right(&result, 9, 3);
    // Of 8 bytes three ranks have no part.
    assert_eq!(rows(&result).len(), 4 * 4 + 5 * 3);

    // The table is nccl-tests' own form, which has fewer digits.
    let from_table = read("table.txt", &table).unwrap();
    assert_eq!(from_table.len(), 9, "a run of nccl-tests for each operation");
    let all: Vec<_> = from_table.iter().flat_map(shown).collect();
    assert_eq!(all, shown(&result));
    assert!(from_table.iter().all(|one| one.complete && one.shape.ranks == Some(3)));

    // Its own form is read without loss.
    let again = run(&folder, "read run/bench.json --json").ok();
    assert_eq!(document::from_json::<BenchResult>(&again).unwrap(), result);
    let csv = run(&folder, "read run/bench.json --csv").ok();
    folder.write("run.csv", &csv);
    let again = run(&folder, "read run.csv --csv").ok();
    assert_eq!(again, csv);
}

#[test]
fn results_come_in_the_form_that_is_asked_for() {
    let folder = Folder::new();
    let json = run(&folder, "all-reduce -b 8 -e 64 -f 8 --ranks 2 -n 3 --json --out own.json").ok();
    let result: BenchResult = document::from_json(&json).unwrap();
    assert_right(&result, 1, 2);
    assert_eq!(kept(&folder, "own.json"), result);
    let words = "all-reduce -b 8 -e 4K -f 8 --ranks 2 -n 3 --csv --out -";
    let both = run(&folder, words).ok();
    assert_eq!(both.matches("\"complete\"").count(), 1, "printed once: {both}");
    let words = "all-reduce -b 8 -e 64 -f 8 --ranks 2 -n 3 --json --out -";
    assert_right(&document::from_json(&run(&folder, words).ok()).unwrap(), 1, 2);
    let csv = "broadcast -b 8 -e 64 -f 8 --ranks 2 -n 3 -r 1 --csv --run-dir run --label mine";
    let csv = run(&folder, csv).ok();
    let (head, lines) = csv.split_once('\n').unwrap();
    assert!(head.contains("size_bytes") && lines.lines().count() == 4, "{csv}");
    let result = kept(&folder, "run/bench.json");
    assert_eq!((result.label.as_str(), result.tables[0].root), ("mine", Some(1)));
    let spread = run(&folder, "all-reduce -b 8 -e 8 --ranks 2 -n 3 -I").ok();
    assert!(spread.contains("i_p99"), "{spread}");
}

#[test]
fn ranks_of_a_job_measure_and_rank_0_tells() {
    let folder = Folder::new();
    let mut launch = command();
    launch.env("TMPDIR", folder.path()).current_dir(folder.path());
    launch.args(["launch", "-n", "2", "--oversubscribe", "--run-dir", "run", "--"]);
    launch.arg(env!("CARGO_BIN_EXE_regatta")).args(["bench", "all-reduce", "-J", "own.json"]);
    let shown_by_launch = ended(launch.args(["-b", "8", "-e", "64", "-f", "8", "-n", "3"])).ok();
    let result = kept(&folder, "own.json");
    assert_right(&result, 1, 2);
    for text in [log(&folder, "run", 0, "out"), shown_by_launch] {
        let found = read("table", &text).unwrap();
        assert_eq!(shown(&found[0]), shown(&result), "with the names of ranks, too");
    }
    assert_eq!(log(&folder, "run", 1, "out"), "", "only one tells");
}

#[test]
fn every_way_through_host_memory_is_right() {
    let folder = Folder::new();
    let ways = ["--backend host", "--backend host -R 1", "--backend tcp", "--backend auto -c 2"];
    for (number, way) in ways.iter().enumerate() {
        let sizes = "-b 8 -e 64K -f 128 -n 2 -w 1 --ranks 2";
        run(&folder, &format!("all {sizes} {way} --run-dir {number}")).ok();
        let result = kept(&folder, &format!("{number}/bench.json"));
        assert_right(&result, 9, 2);
        let backend = if way.contains("tcp") { "tcp" } else { "host" };
        assert_eq!(result.backend.as_deref(), Some(backend), "{way}");
    }
    let types =
        "all-reduce -b 64 -e 64 -n 2 --ranks 2 -d all -o all --backend host --run-dir types";
    run(&folder, types).ok();
    let result = kept(&folder, "types/bench.json");
    assert_right(&result, 1, 2);
    assert_eq!(result.tables.len(), 9 * 5);
}

#[test]
fn messages_go_through_libfabric_where_it_is() {
    let folder = Folder::new();
    let words = "all-reduce -b 8 -e 4K -f 8 -n 2 --ranks 2 --backend libfabric --run-dir run";
    let found = ended(bench(&folder, words).env("REGATTA_FABRIC", "tcp"));
    let lacking = ["libfabric.so.1 cannot be opened", "there is no tcp;"];
    if lacking.iter().any(|what| found.err.contains(what)) {
        println!("skipped: {}", found.err);
        return;
    }
    found.ok();
    let result = kept(&folder, "run/bench.json");
    assert_right(&result, 1, 2);
    assert!(result.versions["libfabric"].starts_with("libfabric: tcp"), "{:?}", result.versions);
    assert_eq!(result.settings["REGATTA_FABRIC"], "tcp");
}

#[test]
fn a_table_of_algorithms_is_made_and_used() {
    let folder = Folder::new();
    let words = "all-reduce --tune table.json -b 8 -e 64K -f 64 -n 2 --ranks 2";
    let said = run(&folder, words);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("REGATTA_TUNING=table.json"), "{}", said.err);
    let table: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.file("table.json")).unwrap()).unwrap();
    assert!(table.to_string().contains("all-reduce"), "{table}");
    let words = "all-reduce -b 8 -e 64K -f 64 -n 2 --ranks 2 --backend tcp --run-dir run";
    ended(bench(&folder, words).env("REGATTA_TUNING", "table.json")).ok();
    assert_right(&kept(&folder, "run/bench.json"), 1, 2);
    let words = words.replace("run-dir run", "run-dir none");
    let missing = ended(bench(&folder, &words).env("REGATTA_TUNING", "none.json"));
    assert_eq!(missing.code, Some(1));
    assert!(missing.err.contains("REGATTA_TUNING none.json: No such file"), "{}", missing.err);
}

#[test]
fn each_setting_of_a_sweep_is_measured() {
    let folder = Folder::new();
    let sweep = "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --run-dir run --plot all.html \
                 --sweep REGATTA_CONNECTIONS=1,2 REGATTA_OTHER=a,b";
    let shown = run(&folder, sweep).ok();
    assert!(shown.contains("best setting"), "{shown}");
    for (number, (connections, other)) in
        [("1", "a"), ("1", "b"), ("2", "a"), ("2", "b")].into_iter().enumerate()
    {
        let result = kept(&folder, &format!("run/{number}/bench.json"));
        assert_right(&result, 1, 2);
        let settings = [&result.settings["REGATTA_CONNECTIONS"], &result.settings["REGATTA_OTHER"]];
        assert_eq!(settings, [connections, other]);
        assert_eq!(
            result.label,
            format!("REGATTA_CONNECTIONS={connections} REGATTA_OTHER={other}")
        );
    }
    let page = std::fs::read_to_string(folder.file("all.html")).unwrap();
    assert!(page.contains("REGATTA_CONNECTIONS=2 REGATTA_OTHER=b"));
    let json = run(&folder, "all-reduce -b 8 -e 8 -n 2 --ranks 2 --sweep REGATTA_OTHER=a,b --json");
    let best: serde_json::Value = serde_json::from_str(&json.ok()).unwrap();
    assert_eq!(best.as_array().unwrap().len(), 1, "{best}");
}

#[test]
fn a_sweep_has_as_many_ranks_as_a_plain_run() {
    let folder = Folder::new();
    run(&folder, "all-reduce -b 8 -e 8 -n 2 --run-dir plain").ok();
    let swept = run(&folder, "all-reduce -b 8 -e 8 -n 2 --run-dir swept --sweep REGATTA_OTHER=a");
    assert!(!swept.err.contains("note:"), "{}", swept.err);
    swept.ok();
    let more = "all-reduce -b 8 -e 8 -n 2 --run-dir more --launch";
    ended(bench(&folder, more).arg("--start-within 60")).ok();
    let ranks = kept(&folder, "plain/bench.json").shape.ranks;
    assert!(ranks >= Some(2));
    for file in ["swept/0/bench.json", "more/bench.json"] {
        assert_eq!(kept(&folder, file).shape.ranks, ranks, "{file}");
    }
}

#[test]
fn results_of_a_sweep_go_where_they_are_asked_for() {
    let folder = Folder::new();
    let words = "all-reduce -b 8 -e 8 -n 2 --ranks 2 --run-dir run --csv -Jall.json \
                 --sweep REGATTA_OTHER=a,b";
    let csv = run(&folder, words).ok();
    let kept = ["run/0/bench.json", "run/1/bench.json"].map(|file| kept(&folder, file));
    assert_eq!(csv, regatta_measure::write::csv(&kept));
    let list = std::fs::read_to_string(folder.file("all.json")).unwrap();
    assert_eq!(read("all.json", &list).unwrap(), kept);
    assert_eq!(run(&folder, "read all.json --csv").ok(), csv);
    let compared = run(&folder, "compare all.json").ok();
    assert!(compared.contains("REGATTA_OTHER=a") && compared.contains("REGATTA_OTHER=b"));
}

#[test]
fn drawings_are_well_formed() {
    let folder = Folder::new();
    run(&folder, "all-reduce -b 8 -e 64 -f 8 -n 2 --ranks 2 --plot one.svg --run-dir run").ok();
    run(&folder, "all -b 8 -e 64 -f 8 -n 2 --ranks 2 --plot all.html").ok();
    run(&folder, "send-recv --ranks 3 --pairs --plot pairs.svg --run-dir pairs");
    run(&folder, "read run/bench.json --plot again.svg").ok();
    for file in ["one.svg", "all.html", "pairs.svg", "again.svg"] {
        let text = std::fs::read_to_string(folder.file(file)).unwrap();
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let drawn = roxmltree::Document::parse_with_options(&text, options)
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(drawn.descendants().any(|node| node.tag_name().name() == "svg"), "{file}");
    }
    let pairs = kept(&folder, "pairs/bench.json").pairs.unwrap();
    assert_eq!(pairs.ends.len(), 3);
}

/// What the crate's tests read.
fn recorded(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../measure/tests/data");
    data.join(name).display().to_string()
}

#[test]
fn results_of_others_are_read_and_compared() {
    let folder = Folder::new();
    let read = |words: &str, files: &[&str]| {
        let files: Vec<String> = files.iter().map(|name| recorded(name)).collect();
        ended(bench(&folder, words).args(files)).ok()
    };
    let shown = read("read", &["frontier-rccl.txt"]);
    assert!(shown.contains("65536") && shown.contains("37.54"), "{shown:.400}");
    let all = ["versions/v2.19-all_reduce.txt", "osu/osu_latency.txt"];
    let json: serde_json::Value = serde_json::from_str(&read("read --json", &all)).unwrap();
    let programs: Vec<&str> =
        json.as_array().unwrap().iter().filter_map(|one| one["program"].as_str()).collect();
    assert_eq!(programs, ["nccl-tests", "osu"]);

    let file = "versions/v2.19-all_reduce.txt";
    let compared = read("compare --labels one,other", &[file, file]);
    assert!(compared.contains("one") && compared.contains("other"), "{compared}");
    let json: serde_json::Value =
        serde_json::from_str(&read("compare --json", &[file, file])).unwrap();
    let rows = json[0]["rows"].as_array().unwrap();
    let same = |ratio: &serde_json::Value| ratio.is_null() || ratio.as_f64() == Some(1.0);
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row["ratios"].as_array().unwrap().iter().all(same)), "{json}");
}

/// The baseline, as if everything had been so many times as fast.
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
fn a_baseline_passes_or_fails_and_says_by_what() {
    let folder = Folder::new();
    let words = "all-reduce -b 8 -e 4K -f 8 -n 5 --ranks 2";
    run(&folder, &format!("{words} --out before.json")).ok();
    let before = kept(&folder, "before.json");
    // So that only what is judged, and not this machine's mood, decides.
    let slow = document::to_json(&faster(&before, 1e-6)).unwrap();
    let fast = document::to_json(&faster(&before, 1e6)).unwrap();
    folder.write("slow.json", &slow);
    folder.write("fast.json", &fast);
    let good = run(&folder, &format!("{words} --baseline slow.json --tolerance 25%"));
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.err.contains("as good as slow.json: 8 figures within 25%"), "{}", good.err);
    let bad = run(&folder, &format!("{words} --baseline fast.json --tolerance 25%"));
    assert_eq!(bad.code, Some(1), "{bad:?}");
    assert!(bad.err.contains("worse than fast.json: 8 of 8 figures"), "{}", bad.err);
    for size in ["(8 B)", "(64 B)", "(512 B)", "(4096 B)"] {
        assert!(bad.err.contains(size), "{size}: {}", bad.err);
    }
    let other = run(&folder, &format!("{} --baseline slow.json", words.replace("4K", "64")));
    assert_eq!(other.code, Some(1));
    assert!(other.err.contains("not measured"), "{}", other.err);
}
