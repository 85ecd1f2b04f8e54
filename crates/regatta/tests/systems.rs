//! The maps of the built-in systems: as published, as golden files, and through the options of the
//! command line.
//!
//! The golden files are written anew with `REGATTA_BLESS=1 cargo test -p regatta --test systems`.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::fmt::Write as _;

use regatta_model::{MemoryPolicy, PlacedRank};
use support::{Plan, SYSTEMS, golden, line, plan};

/// What is published of each system: a line for each GPU in the runtime's order, with its NUMA
/// node, the cores near it, the cores of its rank, their mask, and its NIC's fabric device. `?`
/// stands for what no public source states.
const PUBLISHED: [(&str, &str); 10] = [
    ("lumi-g", MI250X),
    ("frontier", MI250X),
    (
        "perlmutter",
        "3 48-63,112-127 48-63,112-127 ffff000000000000ffff000000000000 cxi3
         2 32-47,96-111  32-47,96-111  ffff000000000000ffff00000000     cxi2
         1 16-31,80-95   16-31,80-95   ffff000000000000ffff0000         cxi1
         0 0-15,64-79    0-15,64-79    ffff000000000000ffff             cxi0",
    ),
    (
        "polaris",
        "3 24-31,56-63 24-31,56-63 ff000000ff000000 ?
         2 16-23,48-55 16-23,48-55 ff000000ff0000   cxi1
         1 8-15,40-47  8-15,40-47  ff000000ff00     ?
         0 0-7,32-39   0-7,32-39   ff000000ff       cxi0",
    ),
    (
        "aurora",
        "0 0-51,104-155   1-8    1fe                        ?
         0 0-51,104-155   9-16   1fe00                      ?
         0 0-51,104-155   17-24  1fe0000                    ?
         0 0-51,104-155   25-32  1fe000000                  ?
         0 0-51,104-155   33-40  1fe00000000                ?
         0 0-51,104-155   41-48  1fe0000000000              ?
         1 52-103,156-207 53-60  1fe0000000000000           ?
         1 52-103,156-207 61-68  1fe000000000000000         ?
         1 52-103,156-207 69-76  1fe00000000000000000       ?
         1 52-103,156-207 77-84  1fe0000000000000000000     ?
         1 52-103,156-207 85-92  1fe000000000000000000000   ?
         1 52-103,156-207 93-100 1fe00000000000000000000000 ?",
    ),
    ("alps", GH200),
    ("jupiter", GH200),
    (
        "marenostrum5-acc",
        "0 0-39  0-19  fffff                ?
         0 0-39  20-39 fffff00000           ?
         1 40-79 40-59 fffff0000000000      ?
         1 40-79 60-79 fffff000000000000000 ?",
    ),
    (
        "el-capitan",
        "0 0-23,96-119   0-23,96-119   ffffff000000000000000000ffffff                   ?
         1 24-47,120-143 24-47,120-143 ffffff000000000000000000ffffff000000             ?
         2 48-71,144-167 48-71,144-167 ffffff000000000000000000ffffff000000000000       ?
         3 72-95,168-191 72-95,168-191 ffffff000000000000000000ffffff000000000000000000 ?",
    ),
    (
        "dgx-h100",
        "0 0-55,112-167   0-13,112-125   3fff0000000000000000000000003fff                         mlx5_0
         0 0-55,112-167   14-27,126-139  fffc000000000000000000000000fffc000                      mlx5_3
         0 0-55,112-167   28-41,140-153  3fff0000000000000000000000003fff0000000                  mlx5_4
         0 0-55,112-167   42-55,154-167  fffc000000000000000000000000fffc0000000000               mlx5_5
         1 56-111,168-223 56-69,168-181  3fff0000000000000000000000003fff00000000000000           mlx5_6
         1 56-111,168-223 70-83,182-195  fffc000000000000000000000000fffc00000000000000000        mlx5_9
         1 56-111,168-223 84-97,196-209  3fff0000000000000000000000003fff000000000000000000000    mlx5_10
         1 56-111,168-223 98-111,210-223 fffc000000000000000000000000fffc000000000000000000000000 mlx5_11",
    ),
];

const MI250X: &str = "3 48-63,112-127 49-55 fe000000000000   cxi0
                      3 48-63,112-127 57-63 fe00000000000000 cxi0
                      1 16-31,80-95   17-23 fe0000           cxi1
                      1 16-31,80-95   25-31 fe000000         cxi1
                      0 0-15,64-79    1-7   fe               cxi2
                      0 0-15,64-79    9-15  fe00             cxi2
                      2 32-47,96-111  33-39 fe00000000       cxi3
                      2 32-47,96-111  41-47 fe0000000000     cxi3";

const GH200: &str = "0 0-71    0-71    ffffffffffffffffff ?
    1 72-143  72-143  ffffffffffffffffff000000000000000000 ?
    2 144-215 144-215 ffffffffffffffffff000000000000000000000000000000000000 ?
    3 216-287 216-287 ffffffffffffffffff000000000000000000000000000000000000000000000000000000 ?";

#[test]
fn every_system_has_its_published_map() {
    assert_eq!(PUBLISHED.map(|(name, _)| name), SYSTEMS);
    for (system, published) in PUBLISHED {
        let plan = plan(&format!("--system {system}"));
        let gpus = &plan.machine().gpus;
        assert_eq!(gpus.len(), published.lines().count(), "{system}");
        assert_eq!(plan.ranks().len(), gpus.len(), "{system}");
        for (i, wanted) in published.lines().enumerate() {
            let (gpu, rank) = (&gpus[i], &plan.ranks()[i]);
            assert_eq!((gpu.index, rank.local_rank), (i as u32, i as u32), "{system}");
            assert_eq!(rank.gpus, [i as u32], "{system}: local rank i has device i");
            let got = [
                gpu.numa.unwrap().to_string(),
                gpu.cpus.to_string(),
                rank.cpus.to_string(),
                rank.mask.clone(),
                plan.fabric_of(rank).unwrap().to_owned(),
            ];
            let wanted: Vec<&str> = wanted.split_whitespace().collect();
            assert_eq!(wanted.len(), got.len(), "{system}");
            let same = wanted.iter().zip(&got).all(|(w, g)| *w == "?" || w == g);
            assert!(same, "{system} GPU {i}: published {wanted:?}, got {got:?}");
        }
    }
}

#[test]
fn lumi_has_the_masks_of_its_guide() {
    let masks = "fe000000000000,fe00000000000000,fe0000,fe000000,fe,fe00,fe00000000,fe0000000000";
    for system in ["lumi-g", "frontier"] {
        let plan = plan(&format!("--system {system}"));
        let got: Vec<&str> = plan.ranks().iter().map(|r| r.mask.as_str()).collect();
        assert_eq!(got.join(","), masks, "{system}");
        let srun = line(&format!("map --system {system} --format srun")).ok();
        let with_prefix = masks.split(',').map(|m| format!("0x{m}")).collect::<Vec<_>>().join(",");
        assert!(srun.contains(&format!("--cpu-bind=mask_cpu:{with_prefix} ")), "{srun}");
    }
}

/// A mask worked out digit by digit from a list such as `0-3,8`.
fn mask_of(list: &str) -> String {
    let mut digits = vec![0u32; 128];
    for range in list.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (usize, usize) = (low.parse().unwrap(), high.parse().unwrap());
        (low..=high).for_each(|cpu| digits[cpu / 4] |= 1 << (cpu % 4));
    }
    let text: String = digits.iter().rev().map(|d| char::from_digit(*d, 16).unwrap()).collect();
    text.trim_start_matches('0').to_owned()
}

#[test]
fn masks_and_lists_say_the_same() {
    assert_eq!(mask_of("1-7"), "fe");
    for system in SYSTEMS.iter().copied().chain(["cpu:2x4x8", "cpu:1x1x1"]) {
        for rank in plan(&format!("--system {system}")).ranks() {
            assert_eq!(rank.mask, mask_of(&rank.cpus.to_string()), "{system}");
        }
    }
}

#[test]
fn nics_are_where_the_sites_say() {
    // One NIC a module, and one a GPU.
    for system in ["alps", "jupiter", "dgx-h100", "perlmutter"] {
        let plan = plan(&format!("--system {system}"));
        let mut nics: Vec<&str> = plan.ranks().iter().map(|r| r.nic.as_deref().unwrap()).collect();
        nics.sort_unstable();
        nics.dedup();
        assert_eq!(nics.len(), plan.ranks().len(), "{system}: {nics:?}");
    }
    // Aurora has four on each socket.
    let plan = plan("--system aurora");
    for rank in plan.ranks() {
        let number: u32 =
            plan.fabric_of(rank).unwrap().strip_prefix("cxi").unwrap().parse().unwrap();
        assert_eq!(number / 4, rank.numa[0], "socket of local rank {}", rank.local_rank);
    }
}

#[test]
fn the_memory_of_gh200_gpus_is_no_place_for_ranks() {
    for system in ["alps", "jupiter"] {
        let plan = plan(&format!("--system {system}"));
        let bare: Vec<u32> =
            plan.machine().numa.iter().filter(|n| n.cpus.is_empty()).map(|n| n.id).collect();
        assert_eq!(bare, [4, 12, 20, 28], "{system}");
        for (i, rank) in plan.ranks().iter().enumerate() {
            assert_eq!(rank.memory, MemoryPolicy::Prefer(vec![i as u32]));
        }
    }
}

fn rank_line(rank: &PlacedRank) -> String {
    let memory = serde_json::to_string(&rank.memory).unwrap();
    let nic = rank.nic.as_deref().unwrap_or("-");
    let why = &rank.reasons;
    format!(
        "rank {} gpus {:?} cpus {} mask {} numa {:?} memory {memory} nic {nic} threads {}\n  gpu: {}\n  cpus: \
         {}\n  memory: {}\n  nic: {}\n  threads: {}\n",
        rank.local_rank,
        rank.gpus,
        rank.cpus,
        rank.mask,
        rank.numa,
        rank.omp_num_threads,
        why.gpu,
        why.cpus,
        why.memory,
        why.nic,
        why.threads
    )
}

/// Machine and placement in words, one line a GPU and one a rank with its reasons below.
fn describe(plan: &Plan) -> String {
    let mut text = String::new();
    let machine = plan.machine();
    for node in &machine.numa {
        let gib = node.memory_bytes >> 30;
        writeln!(text, "numa {} cpus [{}] memory {gib} GiB", node.id, node.cpus).unwrap();
    }
    for gpu in &machine.gpus {
        let numa = gpu.numa.map_or("?".to_owned(), |n| n.to_string());
        let near: Vec<String> = gpu
            .nic_distance
            .iter()
            .zip(&machine.nics)
            .map(|(d, nic)| format!("{} {d:?}", nic.name).to_lowercase())
            .collect();
        let part = gpu.part.map_or(String::new(), |p| format!(".{p}"));
        let (name, cpus, near) = (&gpu.name, &gpu.cpus, near.join(", "));
        let card = gpu.card;
        writeln!(
            text,
            "gpu {} {name} card {card}{part} numa {numa} near {cpus} nics {near}",
            gpu.index
        )
        .unwrap();
    }
    for layout in &plan.placement.layouts {
        layout.ranks.iter().for_each(|rank| text.push_str(&rank_line(rank)));
        writeln!(text, "reserved [{}] idle [{}]", layout.reserved, layout.idle).unwrap();
    }
    for warning in &plan.placement.warnings {
        writeln!(text, "warning {}: {}; {}", warning.code, warning.what, warning.hint).unwrap();
    }
    text
}

#[test]
fn golden_maps_and_launcher_options() {
    for system in SYSTEMS {
        let mut text = describe(&plan(&format!("--system {system}")));
        for launcher in ["srun", "pals", "flux", "openmpi", "mpich"] {
            let run = line(&format!("map --system {system} -N 2 --format {launcher}"));
            write!(text, "\n# {launcher}, 2 nodes\n{}", run.err).unwrap();
            text.push_str(&run.ok());
        }
        golden(&format!("system-{system}.txt"), &text);
    }
}

#[test]
fn the_table_and_the_drawing_show_the_same_plan() {
    for system in SYSTEMS {
        let text = line(&format!("map --system {system} --why")).ok();
        for rank in plan(&format!("--system {system}")).ranks() {
            let row = text.lines().find(|l| {
                let words: Vec<&str> = l.split_whitespace().collect();
                words.len() == 8 && words[0] == rank.local_rank.to_string()
            });
            let row = row.unwrap_or_else(|| panic!("{system}: no row for {}", rank.local_rank));
            let words: Vec<&str> = row.split_whitespace().collect();
            assert_eq!(words[3], rank.cpus.to_string(), "{system}");
            assert_eq!(words[4], rank.mask, "{system}");
            assert_eq!(words[6], rank.nic.as_deref().unwrap(), "{system}");
            assert!(text.contains(&rank.reasons.cpus), "{system}");
        }
    }
}

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
