//! Binding on simulated LUMI nodes with the options that `regatta map --format` prints.

use regatta_model::CpuSet;
use regatta_testbed::lumi::{HWLOC, MASKS};
use regatta_testbed::{Cluster, assert_contains};

use crate::test_cluster::{
    HYDRA, JobOutput, OPEN_MPI, TestCluster, programs_or_skip, synthetic_nodes,
};

/// The L3 cache of each local rank.
const L3_OF_RANK: [usize; 8] = [6, 7, 2, 3, 0, 1, 4, 5];
const SLURM: &str = "Sockets=1 CoresPerSocket=64 ThreadsPerCore=2";
const CHECK: [&str; 5] = ["map", "--system", "lumi-g", "--check", "--json"];
/// Slurm lets a step bind to any CPU only in an exclusive job.
const EXCLUSIVE: [&str; 2] = ["-N2", "--exclusive"];

#[test]
fn printed_launcher_options_bind_ranks_as_planned() {
    let Some(()) = programs_or_skip(&[HYDRA, OPEN_MPI]) else { return };
    let builder = Cluster::builder().nodes(2);
    let Some(cluster) = synthetic_nodes(HWLOC, SLURM, 128, builder) else { return };
    let cluster = TestCluster::new(cluster);
    srun_as_printed(&cluster);
    srun_linear(&cluster);
    srun_unbound(&cluster);
    srun_cyclic(&cluster);
    mpich(&cluster);
    open_mpi(&cluster);
    pbs(&cluster);
}

/// The printed options for a launcher; a shell splits them at white space.
fn printed(cluster: &TestCluster, launcher: &str) -> String {
    let text = cluster.regatta(&["map", "--system", "lumi-g", "-N", "2", "--format", launcher]);
    assert!(!text.contains(['\'', '"', '\\', '$']), "{text}");
    text
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Asserts that all 16 ranks are bound as on LUMI, and that `--check` passes.
fn assert_bound(job: JobOutput) {
    let job = job.assert_success();
    assert_eq!(job.ranks.len(), 16);
    for rank in &job.ranks {
        let report = rank.json();
        let local = rank.number as usize % 8;
        let host = if rank.number < 8 { "node1" } else { "node2" };
        assert_eq!(rank.host, host);
        assert_eq!((&report["host"], &report["rank"]), (&host.into(), &rank.number.into()));
        assert_eq!(report["local_rank"], local);
        assert_eq!(report["ok"], true, "{report}");
        let cpus: CpuSet = report["actual"]["cpus"].as_str().unwrap().parse().unwrap();
        assert_eq!(cpus.to_mask(), MASKS[local], "rank {}", rank.number);
    }
}

fn srun_as_printed(cluster: &TestCluster) {
    let options = printed(cluster, "srun");
    let job = cluster.srun(&EXCLUSIVE, &words(&options), &CHECK);
    for rank in &job.ranks {
        let node = [3, 3, 1, 1, 0, 0, 2, 2][rank.number as usize % 8].to_string();
        assert_eq!(rank.json()["actual"]["memory"]["prefer"], node, "rank {}", rank.number);
    }
    assert_bound(job);
}

/// Cores split linearly, as in most scripts: six of eight ranks are on the wrong cores.
fn srun_linear(cluster: &TestCluster) {
    let masks: Vec<String> = (0..8).map(|i| format!("{:#x}", 0xfeu64 << (8 * i))).collect();
    let bind = format!("--cpu-bind=mask_cpu:{}", masks.join(","));
    let check = ["map", "--system", "lumi-g", "--check"];
    let job = cluster.srun(&EXCLUSIVE, &["--ntasks-per-node=8", &bind], &check);
    assert_eq!(job.output.status.code(), Some(1));
    assert_eq!(job.ranks.len(), 16);
    for rank in &job.ranks {
        let local = rank.number as usize % 8;
        if L3_OF_RANK[local] == local {
            let expected = format!("ok    {} rank {}: ", rank.host, rank.number);
            assert!(rank.text.starts_with(&expected), "{}", rank.text);
            continue;
        }
        let owner = L3_OF_RANK.iter().position(|&e| e == local).unwrap();
        let cores = |l3: usize| format!("{}-{}", 8 * l3 + 1, 8 * l3 + 7);
        let (planned, actual) = (cores(L3_OF_RANK[local]), cores(local));
        let rank_name = format!("{} rank {}", rank.host, rank.number);
        let expected = format!("fail  {rank_name}: cpus: planned {planned}, actual {actual}");
        assert!(rank.text.starts_with(&expected), "no {expected:?} in {}", rank.text);
        assert_contains(&rank.text, &format!("the cores of local rank {owner}:"));
    }
}

fn srun_unbound(cluster: &TestCluster) {
    let job = cluster.srun(&EXCLUSIVE, &["--ntasks-per-node=8", "--cpu-bind=none"], &CHECK);
    assert_eq!(job.output.status.code(), Some(1));
    for rank in &job.ranks {
        let report = rank.json();
        assert_eq!((&report["ok"], &report["actual"]["cpus"]), (&false.into(), &"0-127".into()));
        let why = report["differences"][0]["why"].as_str().unwrap();
        assert_contains(why, "the launcher does not bind");
    }
    assert_eq!(job.ranks.len(), 16);
}

/// With a cyclic distribution, rank 1 is local rank 0 of node2 and must have its cores.
fn srun_cyclic(cluster: &TestCluster) {
    let options = printed(cluster, "srun") + " --distribution=cyclic";
    let job = cluster.srun(&EXCLUSIVE, &words(&options), &CHECK).assert_success();
    assert_eq!(job.hosts()[..3], ["node1", "node2", "node1"]);
    for rank in &job.ranks {
        let cpus: CpuSet = rank.json()["actual"]["cpus"].as_str().unwrap().parse().unwrap();
        assert_eq!(cpus.to_mask(), MASKS[rank.number as usize / 2]);
    }
}

fn mpich(cluster: &TestCluster) {
    let hosts = cluster.file("mpich-hosts", "node1\nnode2\n");
    let check = [&CHECK[..], &["--hostfile", &hosts]].concat();
    let options = printed(cluster, "mpich");
    let with_hosts = [&["-f", &hosts], &words(&options)[..]].concat();
    assert_bound(cluster.hydra(&[], &with_hosts, &check));
    let job = cluster.hydra(&[], &["-f", &hosts, "-n", "16", "-ppn", "8"], &check);
    assert!(!job.output.status.success());
    assert!(job.ranks.iter().all(|r| r.json()["ok"] == false), "{job:?}");
}

/// The binary prints a rankfile, with the command that uses it in a comment.
fn open_mpi(cluster: &TestCluster) {
    let text = cluster.regatta(&["map", "--system", "lumi-g", "-N", "2", "--format", "openmpi"]);
    let file = cluster.file("rankfile", &text);
    let command = text.lines().find_map(|l| l.strip_prefix("#   mpirun ")).unwrap();
    let words = command.split_whitespace().filter(|word| *word != "...");
    let options: Vec<&str> = words.map(|word| if word == "FILE" { &file } else { word }).collect();
    let hosts = cluster.file("openmpi-hosts", "node1 slots=8\nnode2 slots=8\n");
    let check = [&CHECK[..], &["--hostfile", &hosts]].concat();
    assert_bound(cluster.open_mpi(&[&["--hostfile", &hosts], &options[..]].concat(), &check));
}

fn pbs(cluster: &TestCluster) {
    let file = cluster.file("pbs-nodes", &("node1\n".repeat(8) + &"node2\n".repeat(8)));
    let variables = [("PBS_JOBID", "12.server"), ("PBS_NODEFILE", file.as_str())];
    let options = printed(cluster, "mpich");
    let with_pbs = [&["-rmk", "pbs"], &words(&options)[..]].concat();
    assert_bound(cluster.hydra(&variables, &with_pbs, &CHECK));
}
