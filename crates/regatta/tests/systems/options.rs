//! What the job asks for, through the options of the command line.

use regatta_model::MemoryPolicy;

use super::support;
use super::support::{line, plan};

#[test]
fn made_up_processors_give_a_rank_to_each_numa_node() {
    let plan = plan("--system cpu:2x4x8");
    let wanted: Vec<String> = (0..8).map(|n| format!("{}-{}", 8 * n, 8 * n + 7)).collect();
    assert_eq!(plan.cpus(), wanted);
    assert!(plan.ranks().iter().all(|r| r.gpus.is_empty() && r.omp_num_threads == 8));
    let numa: Vec<u32> = plan.ranks().iter().map(|r| r.numa[0]).collect();
    assert_eq!(numa, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn ranks_are_counted_as_asked() {
    assert_eq!(plan("--system cpu:2x4x8 -n 2").cpus(), ["0-31", "32-63"]);
    assert_eq!(plan("--system cpu:2x4x8 --ranks 16").cpus()[..3], ["0-3", "4-7", "8-11"]);
    assert_eq!(plan("--system lumi-g --ranks-per-node 2 -N 3").placement.ranks, 6);
    let uneven = plan("--system lumi-g -n 7 -N 2");
    let ranks: Vec<&[u32]> = uneven.placement.nodes.iter().map(|n| &n.ranks[..]).collect();
    assert_eq!(ranks, [&[0, 1, 2, 3][..], &[4, 5, 6][..]]);
    assert_eq!(uneven.placement.layouts.len(), 2);
    let filled = plan("--system lumi-g -n 9 --ranks-per-node 8 -N 3");
    let counts: Vec<usize> = filled.placement.nodes.iter().map(|n| n.ranks.len()).collect();
    assert_eq!(counts, [8, 1]);
    assert!(filled.warnings().contains(&"idle-nodes"), "{:?}", filled.warnings());

    let sentence = line("map --system lumi-g -n 3 --ranks-per-node 1 -N 2").sentence();
    assert!(sentence.starts_with("3 ranks do not fit on 2 nodes with 1 ranks each"), "{sentence}");
    assert_eq!(line("map --system lumi-g -n 0").sentence(), "a job needs at least one rank");
    let sentence = line("map --system lumi-g -n x").refused();
    assert!(sentence.contains("'x'") && sentence.contains("--ranks"), "{sentence}");
}

#[test]
fn nodes_of_several_kinds_have_a_line_each() {
    let shown =
        |launcher: &str| line(&format!("map --system lumi-g -n 7 -N 2 --format {launcher}"));
    for (launcher, parts) in [
        ("srun", ["--nodes=1 --ntasks=4 ", "--nodelist=node1", "--ntasks=3 ", "--nodelist=node2"]),
        ("pals", ["-n 4 --ppn 4 ", "--hosts node1", "-n 3 --ppn 3 ", "--hosts node2"]),
        ("mpich", ["-n 4 -ppn 4 ", "-hosts node1", "-n 3 -ppn 3 ", "-hosts node2"]),
        ("flux", ["-N 1 -n 4 ", "host:node1", "-N 1 -n 3 ", "host:node2"]),
    ] {
        let run = shown(launcher);
        let way = if launcher == "flux" { "flux run takes one line" } else { "a colon between" };
        assert!(run.err.contains(way), "{launcher}: {}", run.err);
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
fn reserved_cores_serve_no_rank() {
    let kept = plan("--system cpu:2x4x8 --reserve 0,8-9");
    assert_eq!(kept.cpus()[..3], ["1-7", "10-15", "16-23"]);
    assert_eq!(kept.layout().reserved.to_string(), "0,8-9");
    assert_eq!(plan("--system lumi-g --reserve none").cpus()[0], "48-55");
    let with_siblings = plan("--system perlmutter --reserve 64");
    assert_eq!(with_siblings.cpus()[3], "1-15,65-79", "a core is reserved with all its threads");
    let first = plan("--system perlmutter --reserve first-of-l3");
    assert_eq!(first.cpus()[3], "1-7,9-15,65-71,73-79");

    let sentence = line("map --system cpu:1x1x4 --reserve 0-3").sentence();
    assert!(sentence.contains("cpu:1x1x4: no usable core (reserved: 0-3"), "{sentence}");
    for bad in ["abc", "", "3-1", "0,,1"] {
        let run = support::regatta(&["map", "--system", "cpu:1x1x4", "--reserve", bad]);
        let sentence = run.refused();
        assert!(sentence.contains("write first-of-l3, none, or a list"), "{bad}: {sentence}");
    }
}

#[test]
fn threads_of_a_core_are_used_as_asked() {
    assert_eq!(plan("--system lumi-g --smt all").cpus()[4], "1-7,65-71");
    assert_eq!(plan("--system perlmutter --smt one").cpus()[0], "48-63");
    let both = plan("--system perlmutter --smt all");
    assert!(both.ranks().iter().all(|r| r.omp_num_threads == 16), "threads count cores");
    assert!(line("map --system lumi-g --smt two").refused().contains("'two'"));
}

#[test]
fn several_gpus_a_rank_and_none() {
    let pairs = plan("--system lumi-g --gpus-per-rank 2");
    let gpus: Vec<&[u32]> = pairs.ranks().iter().map(|r| &r.gpus[..]).collect();
    assert_eq!(gpus, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(pairs.cpus(), ["49-55,57-63", "17-23,25-31", "1-7,9-15", "33-39,41-47"]);
    let halves = plan("--system lumi-g --gpus-per-rank 4");
    assert_eq!(halves.cpus()[0], "17-23,25-31,49-55,57-63");
    assert_eq!(plan("--system lumi-g --gpus-per-rank 3").ranks().len(), 2);

    let sentence = line("map --system lumi-g --gpus-per-rank 3 -n 3").sentence();
    assert!(sentence.contains("need 9 GPUs and the node has 8"), "{sentence}");
    assert!(line("map --system lumi-g --gpus-per-rank 0").refused().contains("'0'"));

    let none = plan("--system lumi-g --no-gpus");
    assert_eq!(none.ranks().len(), 4, "one a NUMA node");
    assert!(none.ranks().iter().all(|r| r.gpus.is_empty()));
    assert_eq!(none.cpus()[0], "1-7,9-15");

    let shared = plan("--system lumi-g -n 16");
    let gpus: Vec<u32> = shared.ranks().iter().map(|r| r.gpus[0]).collect();
    assert_eq!(gpus[7..9], [7, 0]);
    assert!(shared.warnings().contains(&"shared-gpus"));
    let fewer = plan("--system lumi-g -n 2");
    assert_eq!(fewer.ranks()[1].gpus, [1]);
    assert!(fewer.cpus().iter().all(|c| c.starts_with("49") || c.starts_with("57")));
}

#[test]
fn own_visibility_is_named_with_what_it_breaks() {
    let own = plan("--system lumi-g --visibility own");
    let warning = own.placement.warnings.iter().find(|w| w.code == "visibility").unwrap();
    assert!(warning.what.contains("its own GPU only"), "{}", warning.what);
    assert!(warning.hint.contains("LOCAL_RANK"), "{}", warning.hint);
    let env = line("env --system lumi-g --rank 5 --visibility own").ok();
    assert!(env.contains("export HIP_VISIBLE_DEVICES=5;"), "{env}");
    assert!(line("map --system lumi-g --visibility some").refused().contains("'some'"));
}

#[test]
fn cores_are_counted_or_shared_as_asked() {
    let few = plan("--system lumi-g --cores-per-rank 2");
    assert_eq!(few.cpus()[..2], ["49-50", "57-58"]);
    let sentence = line("map --system lumi-g --cores-per-rank 8").sentence();
    assert!(sentence.contains("8 ranks need 64 cores and 56 are free"), "{sentence}");
    let far = plan("--system lumi-g -n 2 --cores-per-rank 14");
    assert!(far.warnings().contains(&"far-cores"), "{:?}", far.warnings());

    let sentence = line("map --system cpu:1x2x2 -n 5").sentence();
    assert!(sentence.contains("5 ranks need 5 cores and 4 are free"), "{sentence}");
    assert!(sentence.contains("--oversubscribe"), "{sentence}");
    let shared = plan("--system cpu:1x2x2 -n 8 --oversubscribe");
    assert_eq!(shared.ranks().len(), 8);
    assert!(shared.ranks().iter().all(|r| r.cpus.len() == 1));
}

#[test]
fn memory_is_bound_as_asked() {
    let memory =
        |how: &str| plan(&format!("--system lumi-g --memory {how}")).ranks()[0].memory.clone();
    assert_eq!(memory("prefer"), MemoryPolicy::Prefer(vec![3]));
    assert_eq!(memory("bind"), MemoryPolicy::Bind(vec![3]));
    assert_eq!(memory("system"), MemoryPolicy::System);
    let srun = line("map --system lumi-g --memory bind --format srun").ok();
    assert!(srun.contains("--mem-bind=mask_mem:0x8,0x8,0x2,0x2,0x1,0x1,0x4,0x4"), "{srun}");
}

#[test]
fn impossible_sizes_are_refused_quickly() {
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
        let run = line(&format!("map --system lumi-g {words}"));
        assert!(matches!(run.code, Some(1 | 2)), "{words}: {run:?}");
        assert!(run.err.starts_with("error: "), "{words}: {}", run.err);
    }
}
