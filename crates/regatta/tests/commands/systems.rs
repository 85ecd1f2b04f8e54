//! Placement on the built-in systems: published maps, golden files and job options.
//!
//! `REGATTA_BLESS=1 cargo test -p regatta --test commands systems` updates the golden files.

use std::fmt::Write as _;

use regatta_model::{Gpu, MemoryPolicy, PlacedRank};
use regatta_testbed::lumi::MASKS;

use crate::support::{MapOutput, SYSTEMS, golden, map_json, run_line};

/// Published maps: a line per GPU in device order, with its NUMA node, local CPUs, the CPUs of its
/// rank, their mask, and the fabric device of its NIC. `?` is not stated by any public source.
const PUBLISHED: [(&str, &str); 10] = [
    ("lumi-g", MI250X),
    ("frontier", MI250X),
    ("perlmutter", PERLMUTTER),
    ("polaris", POLARIS),
    ("aurora", AURORA),
    ("alps", GH200),
    ("jupiter", GH200),
    ("marenostrum5-acc", MARENOSTRUM5_ACC),
    ("el-capitan", EL_CAPITAN),
    ("dgx-h100", DGX_H100),
];

const PERLMUTTER: &str = "3 48-63,112-127 48-63,112-127 ffff000000000000ffff000000000000 cxi3
         2 32-47,96-111  32-47,96-111  ffff000000000000ffff00000000     cxi2
         1 16-31,80-95   16-31,80-95   ffff000000000000ffff0000         cxi1
         0 0-15,64-79    0-15,64-79    ffff000000000000ffff             cxi0";

const POLARIS: &str = "3 24-31,56-63 24-31,56-63 ff000000ff000000 ?
         2 16-23,48-55 16-23,48-55 ff000000ff0000   cxi1
         1 8-15,40-47  8-15,40-47  ff000000ff00     ?
         0 0-7,32-39   0-7,32-39   ff000000ff       cxi0";

const AURORA: &str = "0 0-51,104-155   1-8    1fe                        ?
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
         1 52-103,156-207 93-100 1fe00000000000000000000000 ?";

const MARENOSTRUM5_ACC: &str = "0 0-39  0-19  fffff                ?
         0 0-39  20-39 fffff00000           ?
         1 40-79 40-59 fffff0000000000      ?
         1 40-79 60-79 fffff000000000000000 ?";

const EL_CAPITAN: &str =
    "0 0-23,96-119   0-23,96-119   ffffff000000000000000000ffffff                   ?
         1 24-47,120-143 24-47,120-143 ffffff000000000000000000ffffff000000             ?
         2 48-71,144-167 48-71,144-167 ffffff000000000000000000ffffff000000000000       ?
         3 72-95,168-191 72-95,168-191 ffffff000000000000000000ffffff000000000000000000 ?";

const DGX_H100: &str = "0 0-55,112-167   0-13,112-125   3fff0000000000000000000000003fff                         mlx5_0
         0 0-55,112-167   14-27,126-139  fffc000000000000000000000000fffc000                      mlx5_3
         0 0-55,112-167   28-41,140-153  3fff0000000000000000000000003fff0000000                  mlx5_4
         0 0-55,112-167   42-55,154-167  fffc000000000000000000000000fffc0000000000               mlx5_5
         1 56-111,168-223 56-69,168-181  3fff0000000000000000000000003fff00000000000000           mlx5_6
         1 56-111,168-223 70-83,182-195  fffc000000000000000000000000fffc00000000000000000        mlx5_9
         1 56-111,168-223 84-97,196-209  3fff0000000000000000000000003fff000000000000000000000    mlx5_10
         1 56-111,168-223 98-111,210-223 fffc000000000000000000000000fffc000000000000000000000000 mlx5_11";

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
fn every_system_matches_its_published_map() {
    assert_eq!(PUBLISHED.map(|(name, _)| name), SYSTEMS);
    for (system, published) in PUBLISHED {
        let plan = map_json(&format!("--system {system}"));
        let gpus = &plan.machine().gpus;
        assert_eq!(gpus.len(), published.lines().count(), "{system}");
        assert_eq!(plan.ranks().len(), gpus.len(), "{system}");
        for (i, expected) in published.lines().enumerate() {
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
            let expected: Vec<&str> = expected.split_whitespace().collect();
            assert_eq!(expected.len(), got.len(), "{system}");
            let same = expected.iter().zip(&got).all(|(e, g)| *e == "?" || e == g);
            assert!(same, "{system} GPU {i}: published {expected:?}, got {got:?}");
        }
    }
}

#[test]
fn lumi_masks_match_its_user_guide() {
    for system in ["lumi-g", "frontier"] {
        let plan = map_json(&format!("--system {system}"));
        let got: Vec<&str> = plan.ranks().iter().map(|r| r.mask.as_str()).collect();
        assert_eq!(got, MASKS, "{system}");
        let bind = format!("--cpu-bind=mask_cpu:{} ", MASKS.map(|m| format!("0x{m}")).join(","));
        run_line(&format!("map --system {system} --format srun")).assert_ok(&bind);
    }
}

#[test]
fn uneven_ranks_are_one_step_of_srun() {
    let run = run_line("map --system lumi-g -N 2 -n 9 --format srun");
    let line = "--nodes=2 --ntasks=9 --ntasks-per-node=5 --distribution=plane=5 --cpu-bind=mask_cpu:\
                0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfefe ";
    let text = run.assert_ok([line, " --gpu-bind=none\n"]);
    assert_eq!(text.lines().count(), 1);
    let three = run_line("map --system lumi-g -N 3 -n 7 --format srun");
    three.assert_stderr("srun puts up to 3 ranks on each node").assert_ok("--distribution=plane=3");
}

#[test]
fn settings_and_launcher_options_belong_together() {
    for (system, launcher, option) in [
        ("frontier", "srun", "--network=disable_rdzv_get"),
        ("alps", "srun", "--network=disable_rdzv_get"),
        ("aurora", "pals", "--pmi=pmix"),
    ] {
        run_line(&format!("map --system {system} -N 2 --format {launcher}")).assert_ok(option);
    }
    for system in ["perlmutter -N 2", "lumi-g"] {
        let text = run_line(&format!("map --system {system} --format srun")).ok();
        assert!(!text.contains("--network"), "{system}: {text}");
    }
}

#[test]
fn one_rank_per_node_gets_all_cores_for_the_workers_of_torchrun() {
    let plan = map_json("--system lumi-g -N 2 --ranks-per-node 1");
    let rank = &plan.ranks()[0];
    assert_eq!((rank.gpus.len(), rank.mask.as_str()), (8, "fefefefefefefefe"));
    assert_eq!(rank.omp_num_threads, 7);
    let plan = map_json("--system lumi-g -N 2 --ranks-per-node 1 --gpus-per-rank 1");
    assert_eq!(plan.ranks()[0].mask, "fefe000000000000");
}

/// Computes a mask digit by digit from a list such as `0-3,8`.
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
fn masks_match_cpu_lists() {
    assert_eq!(mask_of("1-7"), "fe");
    for system in SYSTEMS.iter().copied().chain(["cpu:2x4x8", "cpu:1x1x1"]) {
        for rank in map_json(&format!("--system {system}")).ranks() {
            assert_eq!(rank.mask, mask_of(&rank.cpus.to_string()), "{system}");
        }
    }
}

#[test]
fn nics_match_the_site_documentation() {
    // One NIC per module or per GPU.
    for system in ["alps", "jupiter", "dgx-h100", "perlmutter"] {
        let plan = map_json(&format!("--system {system}"));
        let mut nics: Vec<&str> = plan.ranks().iter().map(|r| r.nic.as_deref().unwrap()).collect();
        nics.sort_unstable();
        nics.dedup();
        assert_eq!(nics.len(), plan.ranks().len(), "{system}: {nics:?}");
    }
    // Aurora has four on each socket.
    let plan = map_json("--system aurora");
    for rank in plan.ranks() {
        let number: u32 =
            plan.fabric_of(rank).unwrap().strip_prefix("cxi").unwrap().parse().unwrap();
        assert_eq!(number / 4, rank.numa[0], "socket of local rank {}", rank.local_rank);
    }
}

#[test]
fn gh200_gpu_memory_nodes_are_not_used_for_ranks() {
    for system in ["alps", "jupiter"] {
        let plan = map_json(&format!("--system {system}"));
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
    let PlacedRank { local_rank, gpus, cpus, mask, numa, omp_num_threads: threads, .. } = rank;
    let why = &rank.reasons;
    format!(
        "rank {local_rank} gpus {gpus:?} cpus {cpus} mask {mask} numa {numa:?} memory {memory} \
         nic {nic} threads {threads}\n  gpu: {}\n  cpus: {}\n  memory: {}\n  nic: {}\n  \
         threads: {}\n",
        why.gpu, why.cpus, why.memory, why.nic, why.threads
    )
}

/// Machine and placement as text: a line per GPU, and a line per rank followed by its reasons.
fn describe(plan: &MapOutput) -> String {
    let mut text = String::new();
    let machine = plan.machine();
    for node in &machine.numa {
        let gib = node.memory_bytes >> 30;
        writeln!(text, "numa {} cpus [{}] memory {gib} GiB", node.id, node.cpus).unwrap();
    }
    for gpu in &machine.gpus {
        let numa = gpu.numa.map_or("?".to_owned(), |n| n.to_string());
        let nics = gpu.nic_distance.iter().zip(&machine.nics);
        let nics: Vec<String> =
            nics.map(|(d, nic)| format!("{} {d:?}", nic.name).to_lowercase()).collect();
        let part = gpu.subdevice.map_or(String::new(), |p| format!(".{p}"));
        let Gpu { index, name, card, cpus, .. } = gpu;
        write!(text, "gpu {index} {name} card {card}{part} numa {numa} near {cpus}").unwrap();
        writeln!(text, " nics {}", nics.join(", ")).unwrap();
    }
    for layout in &plan.placement.layouts {
        layout.ranks.iter().for_each(|rank| text.push_str(&rank_line(rank)));
        writeln!(text, "reserved [{}] idle [{}]", layout.reserved, layout.idle).unwrap();
    }
    for warning in &plan.placement.warnings {
        writeln!(text, "warning {}: {}; {}", warning.code, warning.message, warning.hint).unwrap();
    }
    text
}

#[test]
fn maps_and_launcher_options_match_the_golden_files() {
    for system in SYSTEMS {
        let mut text = describe(&map_json(&format!("--system {system}")));
        for launcher in ["srun", "pals", "flux", "openmpi", "mpich"] {
            let run = run_line(&format!("map --system {system} -N 2 --format {launcher}"));
            write!(text, "\n# {launcher}, 2 nodes\n{}", run.err).unwrap();
            text.push_str(&run.ok());
        }
        golden(&format!("system-{system}.txt"), &text);
    }
}

#[test]
fn table_and_reasons_match_the_json_plan() {
    for system in SYSTEMS {
        let text = run_line(&format!("map --system {system} --why")).ok();
        for rank in map_json(&format!("--system {system}")).ranks() {
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

mod options;
