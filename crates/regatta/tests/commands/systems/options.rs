//! Job options.

use regatta_model::MemoryPolicy;
use regatta_testbed::assert_contains;

use crate::support::{map_json, regatta, run_line};

#[test]
fn synthetic_cpus_get_one_rank_per_numa_node() {
    let plan = map_json("--system cpu:2x4x8");
    let expected: Vec<String> = (0..8).map(|n| format!("{}-{}", 8 * n, 8 * n + 7)).collect();
    assert_eq!(plan.cpus(), expected);
    assert!(plan.ranks().iter().all(|r| r.gpus.is_empty() && r.omp_num_threads == 8));
    let numa: Vec<u32> = plan.ranks().iter().map(|r| r.numa[0]).collect();
    assert_eq!(numa, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn rank_counts_follow_the_options() {
    assert_eq!(map_json("--system cpu:2x4x8 -n 2").cpus(), ["0-31", "32-63"]);
    assert_eq!(map_json("--system cpu:2x4x8 --ranks 16").cpus()[..3], ["0-3", "4-7", "8-11"]);
    assert_eq!(map_json("--system lumi-g --ranks-per-node 2 -N 3").placement.ranks, 6);
    let uneven = map_json("--system lumi-g -n 7 -N 2");
    let ranks: Vec<&[u32]> = uneven.placement.nodes.iter().map(|n| &n.ranks[..]).collect();
    assert_eq!(ranks, [&[0, 1, 2, 3][..], &[4, 5, 6][..]]);
    assert_eq!(uneven.placement.layouts.len(), 2);
    let filled = map_json("--system lumi-g -n 9 --ranks-per-node 8 -N 3");
    let counts: Vec<usize> = filled.placement.nodes.iter().map(|n| n.ranks.len()).collect();
    assert_eq!(counts, [8, 1]);
    filled.assert_warning("idle-nodes");

    let error = run_line("map --system lumi-g -n 3 --ranks-per-node 1 -N 2").error_line();
    assert!(error.starts_with("--ranks 3 exceeds 2 nodes x 1 rank per node"), "{error}");
    assert_eq!(run_line("map --system lumi-g -n 0").error_line(), "a job needs at least one rank");
    run_line("map --system lumi-g -n x").assert_usage_error(["'x'", "--ranks"]);
}

#[test]
fn launcher_options_have_one_line_per_node_layout() {
    let shown =
        |launcher: &str| run_line(&format!("map --system lumi-g -n 7 -N 2 --format {launcher}"));
    for (launcher, parts) in [
        ("pals", ["-n 4 --ppn 4 ", "--hosts node1", "-n 3 --ppn 3 ", "--hosts node2"]),
        ("mpich", ["-n 4 -ppn 4 ", "-hosts node1", "-n 3 -ppn 3 ", "-hosts node2"]),
        ("flux", ["-N 1 -n 4 ", "host:node1", "-N 1 -n 3 ", "host:node2"]),
    ] {
        let run = shown(launcher);
        let hint = if launcher == "flux" { "accepts a single line" } else { "separated by colons" };
        assert!(run.err.contains(hint), "{launcher}: {}", run.err);
        let text = run.ok();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        for (i, part) in parts.iter().enumerate() {
            assert!(lines[i / 2].contains(part), "{launcher}: no {part} in {}", lines[i / 2]);
        }
    }
    assert_eq!(shown("openmpi").ok().lines().filter(|l| l.starts_with("rank ")).count(), 7);
}

#[test]
fn reserved_cores_are_not_assigned() {
    let reserved = map_json("--system cpu:2x4x8 --reserve 0,8-9");
    assert_eq!(reserved.cpus()[..3], ["1-7", "10-15", "16-23"]);
    assert_eq!(reserved.layout().reserved.to_string(), "0,8-9");
    assert_eq!(map_json("--system lumi-g --reserve none").cpus()[0], "48-55");
    let with_siblings = map_json("--system perlmutter --reserve 64");
    assert_eq!(with_siblings.cpus()[3], "1-15,65-79", "a core is reserved with all its threads");
    let first = map_json("--system perlmutter --reserve first-of-l3");
    assert_eq!(first.cpus()[3], "1-7,9-15,65-71,73-79");

    run_line("map --system cpu:1x1x4 --reserve 0-3")
        .assert_error("cpu:1x1x4: no usable core (reserved: 0-3");
    for bad in ["abc", "", "3-1", "0,,1"] {
        let run = regatta(&["map", "--system", "cpu:1x1x4", "--reserve", bad]);
        run.assert_usage_error("expected first-of-l3, none, or a CPU list");
    }
}

#[test]
fn smt_option_selects_hardware_threads() {
    assert_eq!(map_json("--system lumi-g --smt all").cpus()[4], "1-7,65-71");
    assert_eq!(map_json("--system perlmutter --smt one").cpus()[0], "48-63");
    let both = map_json("--system perlmutter --smt all");
    assert!(both.ranks().iter().all(|r| r.omp_num_threads == 16), "threads equal cores");
    run_line("map --system lumi-g --smt two").assert_usage_error("'two'");
}

#[test]
fn gpus_per_rank_and_no_gpus() {
    let pairs = map_json("--system lumi-g --gpus-per-rank 2");
    let gpus: Vec<&[u32]> = pairs.ranks().iter().map(|r| &r.gpus[..]).collect();
    assert_eq!(gpus, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(pairs.cpus(), ["49-55,57-63", "17-23,25-31", "1-7,9-15", "33-39,41-47"]);
    let halves = map_json("--system lumi-g --gpus-per-rank 4");
    assert_eq!(halves.cpus()[0], "17-23,25-31,49-55,57-63");
    assert_eq!(map_json("--system lumi-g --gpus-per-rank 3").ranks().len(), 2);

    run_line("map --system lumi-g --gpus-per-rank 3 -n 3")
        .assert_error("need 9 GPUs (--gpus-per-rank 3), but the node has 8");
    run_line("map --system lumi-g --gpus-per-rank 0").assert_usage_error("'0'");

    let none = map_json("--system lumi-g --no-gpus");
    assert_eq!(none.ranks().len(), 4, "one per NUMA node");
    assert!(none.ranks().iter().all(|r| r.gpus.is_empty()));
    assert_eq!(none.cpus()[0], "1-7,9-15");

    let shared = map_json("--system lumi-g -n 16");
    let gpus: Vec<u32> = shared.ranks().iter().map(|r| r.gpus[0]).collect();
    assert_eq!(gpus[7..9], [7, 0]);
    shared.assert_warning("shared-gpus");
    let fewer = map_json("--system lumi-g -n 2");
    assert_eq!(fewer.ranks()[1].gpus, [1]);
    assert!(fewer.cpus().iter().all(|c| c.starts_with("49") || c.starts_with("57")));
}

#[test]
fn own_visibility_warns_about_local_rank() {
    let own = map_json("--system lumi-g --visibility own");
    let warning = own.placement.warnings.iter().find(|w| w.code == "visibility").unwrap();
    assert_contains(&warning.message, "only its own GPU");
    assert_contains(&warning.hint, "LOCAL_RANK");
    let env = run_line("env --system lumi-g --rank 5 --visibility own");
    env.assert_ok("export HIP_VISIBLE_DEVICES=5;");
    run_line("map --system lumi-g --visibility some").assert_usage_error("'some'");
}

#[test]
fn cores_per_rank_and_oversubscription() {
    let few = map_json("--system lumi-g --cores-per-rank 2");
    assert_eq!(few.cpus()[..2], ["49-50", "57-58"]);
    run_line("map --system lumi-g --cores-per-rank 8")
        .assert_error("8 ranks need 64 cores (--cores-per-rank 8), but only 56 are usable");
    let far = map_json("--system lumi-g -n 2 --cores-per-rank 14");
    far.assert_warning("remote-cores");

    run_line("map --system cpu:1x2x2 -n 5")
        .assert_error(["5 ranks need 5 cores, but only 4 are usable", "--oversubscribe"]);
    let shared = map_json("--system cpu:1x2x2 -n 8 --oversubscribe");
    assert_eq!(shared.ranks().len(), 8);
    assert!(shared.ranks().iter().all(|r| r.cpus.len() == 1));
}

#[test]
fn memory_option_sets_the_numa_policy() {
    let memory =
        |how: &str| map_json(&format!("--system lumi-g --memory {how}")).ranks()[0].memory.clone();
    assert_eq!(memory("prefer"), MemoryPolicy::Prefer(vec![3]));
    assert_eq!(memory("bind"), MemoryPolicy::Bind(vec![3]));
    assert_eq!(memory("default"), MemoryPolicy::Default);
    assert_eq!(memory("system"), MemoryPolicy::Default, "alias");
    run_line("map --system lumi-g --memory bind --format srun")
        .assert_ok("--mem-bind=mask_mem:0x8,0x8,0x2,0x2,0x1,0x1,0x4,0x4");
}

#[test]
fn impossible_sizes_are_rejected() {
    for words in [
        "-N 0",
        "-N 4294967295",
        "-n 4294967295",
        "-n 4294967295 --oversubscribe",
        "--ranks-per-node 4294967295 -N 3",
        "-N 100000 --ranks-per-node 100000 --oversubscribe",
        "--gpus-per-rank 4294967295 -n 4294967295",
        "--gpus-per-rank 4294967295 -n 2",
        "--cores-per-rank 4294967295",
    ] {
        let run = run_line(&format!("map --system lumi-g {words}"));
        assert!(matches!(run.code, Some(1 | 2)), "{words}: {run:?}");
        assert!(run.err.starts_with("error: "), "{words}: {}", run.err);
    }
}
