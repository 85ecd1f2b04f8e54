use regatta_model::{Allocation, Distribution, Launcher, Scheduler};

use super::{AllocationError, DetectionInputs, detect};
use crate::{Env, Root};

fn detect_on(host: &str, pairs: &[(&str, &str)]) -> Result<Allocation, AllocationError> {
    let env: Env = pairs.iter().copied().collect();
    let root = Root::at(env!("CARGO_MANIFEST_DIR")).path("tests/fixtures/nodefiles");
    detect(&DetectionInputs {
        env: &env,
        root: &Root::at(root),
        host,
        hostfile: None,
        flux_hosts: &|| Some("flux[1-2]".to_owned()),
    })
}

fn error(pairs: &[(&str, &str)]) -> String {
    detect_on("n1", pairs).unwrap_err().to_string()
}

const STEP: [(&str, &str); 10] = [
    ("SLURM_JOB_ID", "77"),
    ("SLURM_CLUSTER_NAME", "lumi"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "n[1-4]"),
    ("SLURM_STEP_NUM_NODES", "4"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
    ("SLURM_PROCID", "3"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
];

fn step_with(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut pairs: Vec<_> = STEP.iter().copied().filter(|(n, _)| *n != name).collect();
    pairs.push((name, value));
    pairs
}

#[test]
fn empty_environment_is_the_local_node() {
    assert_eq!(detect_on("laptop", &[]).unwrap(), Allocation::single_node("laptop"));
}

#[test]
fn slurm_step_is_detected() {
    let a = detect_on("n2", &STEP).unwrap();
    assert_eq!((a.scheduler, a.launcher), (Scheduler::Slurm, Some(Launcher::Srun)));
    let ranks: Vec<_> = a.nodes.iter().map(|n| (n.host.as_str(), n.ranks.unwrap())).collect();
    assert_eq!(ranks, [("n1", 2), ("n2", 2), ("n3", 2), ("n4", 1)]);
    let me = a.this_rank.unwrap();
    assert_eq!((me.rank, me.size, me.local_rank, me.local_size, me.node), (3, 7, 1, 2, Some(1)));
    assert_eq!(a.cluster.as_deref(), Some("lumi"));
    assert!(a.evidence.iter().any(|e| e.name == "SLURM_STEP_NODELIST"));
}

#[test]
fn batch_script_is_not_a_rank() {
    let a = detect_on(
        "n1",
        &[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_NNODES", "2"),
            ("SLURM_NTASKS", "16"),
            ("SLURM_TASKS_PER_NODE", "8(x2)"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_DISTRIBUTION", "cyclic:block"),
        ],
    )
    .unwrap();
    assert_eq!(a.this_rank, None);
    assert_eq!(a.nodes[1].ranks, Some(8));
    assert_eq!(a.distribution, Distribution::Cyclic);
}

/// The environment of an `salloc` shell that Slurm opens on the first node.
const SALLOC_SHELL: [(&str, &str); 16] = [
    ("SLURM_JOB_ID", "77"),
    ("SLURM_JOB_NODELIST", "n[1-4]"),
    ("SLURM_JOB_NUM_NODES", "4"),
    ("SLURM_NNODES", "4"),
    ("SLURM_NTASKS", "32"),
    ("SLURM_TASKS_PER_NODE", "8(x4)"),
    ("SLURM_STEP_ID", "4294967290"),
    ("SLURM_STEP_NODELIST", "n1"),
    ("SLURM_STEP_NUM_NODES", "1"),
    ("SLURM_STEP_NUM_TASKS", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "1"),
    ("SLURM_PROCID", "0"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "0"),
    ("PMIX_RANK", "0"),
    ("PMI_RANK", "0"),
];

#[test]
fn salloc_shell_is_not_a_rank() {
    let a = detect_on("n1", &SALLOC_SHELL).unwrap();
    assert_eq!((a.this_rank, a.launcher), (None, None));
    assert_eq!((a.nodes.len(), a.nodes[3].ranks), (4, Some(8)));
    // A launcher started in it sets its own variables.
    let mpirun = [
        ("OMPI_COMM_WORLD_RANK", "9"),
        ("OMPI_COMM_WORLD_SIZE", "16"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ];
    let a = detect_on("n3", &[SALLOC_SHELL.as_slice(), &mpirun].concat()).unwrap();
    assert_eq!((a.launcher, a.this_rank.unwrap().node), (Some(Launcher::OpenMpi), Some(2)));
}

#[test]
fn slurm_with_pals_variables_is_slurm() {
    // Older versions do not set the sizes.
    let old = [("PALS_APID", "77.0"), ("PALS_RANKID", "3"), ("PALS_NODEID", "1")];
    let new = [
        ("PALS_LOCAL_RANKID", "1"),
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "7"),
        ("PMI_LOCAL_RANK", "1"),
        ("PMI_LOCAL_SIZE", "2"),
    ];
    for pals in [old.to_vec(), [old.as_slice(), &new].concat()] {
        let a = detect_on("n2", &[STEP.as_slice(), &pals].concat()).unwrap();
        assert_eq!(a.launcher, Some(Launcher::Srun), "{pals:?}");
        assert_eq!(a.nodes[3].ranks, Some(1), "the step's own counts");
    }
    let shell = [SALLOC_SHELL.as_slice(), &[("PALS_APID", "77.4294967290"), ("PALS_RANKID", "0")]];
    assert_eq!(detect_on("n1", &shell.concat()).unwrap().this_rank, None);
}

#[test]
fn step_of_another_job_is_rejected() {
    let mut stale = STEP.to_vec();
    stale.push(("SLURM_JOB_NODELIST", "n[1-3],m7"));
    let m = error(&stale);
    assert!(m.contains("SLURM_STEP_NODELIST=n[1-4] and SLURM_JOB_NODELIST=n[1-3],m7"), "{m}");
    assert!(m.contains("n4 is in the step but not in the job"), "{m}");
    stale.push(("SLURM_JOB_NODELIST", "n[0-9]"));
    assert!(detect_on("n2", &stale).is_ok(), "a step on some of the job's nodes");
}

#[test]
fn tasks_per_node_without_a_total_are_ignored() {
    let a = detect_on(
        "n1",
        &[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_TASKS_PER_NODE", "128(x2)"),
        ],
    )
    .unwrap();
    assert_eq!(a.nodes[0].ranks, None);
}

#[test]
fn ntasks_per_node_is_used_without_ntasks() {
    let a = detect_on(
        "n1",
        &[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_NTASKS_PER_NODE", "4"),
            ("SLURM_TASKS_PER_NODE", "4(x2)"),
        ],
    )
    .unwrap();
    assert_eq!((a.nodes[0].ranks, a.nodes[1].ranks), (Some(4), Some(4)));
}

#[test]
fn contradictions_name_both_variables() {
    let four_and_two = error(&[
        ("SLURM_JOB_ID", "1"),
        ("SLURM_JOB_NODELIST", "n[1-4]"),
        ("SLURM_NNODES", "2"),
        ("SLURM_NTASKS", "16"),
        ("SLURM_TASKS_PER_NODE", "8(x2)"),
    ]);
    assert!(
        four_and_two.contains("SLURM_JOB_NODELIST=n[1-4] and SLURM_NNODES=2"),
        "{four_and_two}"
    );
    let two_counts = error(&[
        ("SLURM_JOB_ID", "1"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_JOB_NUM_NODES", "2"),
        ("SLURM_NNODES", "4"),
    ]);
    assert!(two_counts.contains("SLURM_NNODES=4"), "{two_counts}");
    let m = error(&step_with("SLURM_STEP_TASKS_PER_NODE", "8(x2)"));
    assert!(m.contains("SLURM_STEP_NODELIST=n[1-4] and SLURM_STEP_TASKS_PER_NODE=8(x2)"), "{m}");
    let m = error(&step_with("SLURM_STEP_NUM_TASKS", "8"));
    assert!(m.contains("SLURM_STEP_NUM_TASKS=8") && m.contains("add up to 7"), "{m}");
    let m = error(&step_with("SLURM_PROCID", "9"));
    assert!(m.contains("SLURM_PROCID=9 and SLURM_STEP_NUM_TASKS=7"), "{m}");
    let m = error(&step_with("SLURM_LOCALID", "2"));
    assert!(m.contains("local rank 2 with 2 ranks"), "{m}");
    let m = error(&step_with("SLURM_NODEID", "4"));
    assert!(m.contains("4 nodes"), "{m}");
    let m = error(&step_with("SLURM_STEP_NUM_TASKS", "many"));
    assert!(m.contains("SLURM_STEP_NUM_TASKS=\"many\" is not a number"), "{m}");
    let m = error(&step_with("SLURM_STEP_NODELIST", "n[1-"));
    assert!(m.contains("SLURM_STEP_NODELIST: the bracket at byte 1"), "{m}");
}

#[test]
fn missing_variables_are_named() {
    assert!(error(&[("SLURM_JOB_ID", "1")]).contains("SLURM_JOB_NODELIST is not"));
    assert!(error(&[("PBS_JOBID", "1.pbs")]).contains("PBS_NODEFILE is not"));
    let m = error(&[("PBS_JOBID", "1.pbs"), ("PBS_NODEFILE", "/no/such/file")]);
    assert!(m.contains("PBS_NODEFILE=/no/such/file: No such file"), "{m}");
    let m = error(&[("OMPI_COMM_WORLD_RANK", "0")]);
    assert!(m.contains("OMPI_COMM_WORLD_SIZE is not"), "{m}");
    assert!(error(&[("PMIX_RANK", "0")]).contains("PMIX_SIZE is not"));
}

#[test]
fn pals_in_a_pbs_job_is_detected() {
    let a = detect_on(
        "x2.hsn.cm",
        &[
            ("PBS_JOBID", "3061463.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"),
            ("PBS_NODEFILE", "/two-by-slot"),
            ("PALS_RANKID", "5"),
            ("PMI_RANK", "5"),
            ("PMI_SIZE", "8"),
            ("PALS_LOCAL_RANKID", "1"),
            ("PALS_LOCAL_SIZE", "4"),
        ],
    )
    .unwrap();
    assert_eq!((a.scheduler, a.launcher), (Scheduler::Pbs, Some(Launcher::Pals)));
    let me = a.this_rank.unwrap();
    assert_eq!((me.rank, me.size, me.local_rank, me.local_size, me.node), (5, 8, 1, 4, Some(1)));
    assert!(a.nodes.iter().all(|n| n.ranks == Some(4)));
}

#[test]
fn open_mpi_in_a_slurm_job_is_open_mpi() {
    let mut pairs = STEP.to_vec();
    pairs.extend([
        ("SLURM_JOB_NODELIST", "n[1-4]"),
        ("OMPI_COMM_WORLD_RANK", "15"),
        ("OMPI_COMM_WORLD_SIZE", "16"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ]);
    let a = detect_on("n4", &pairs).unwrap();
    assert_eq!(a.launcher, Some(Launcher::OpenMpi));
    let me = a.this_rank.unwrap();
    assert_eq!((me.rank, me.size, me.node), (15, 16, Some(3)));
    assert!(a.nodes.iter().all(|n| n.ranks == Some(4)));
}

#[test]
fn hydra_without_scheduler_keeps_the_world_size() {
    let pairs =
        [("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    let a = detect_on("n9", &pairs).unwrap();
    assert_eq!(a.this_rank.unwrap().size, 4);
    let hosts: Vec<_> = a.nodes.iter().map(|n| n.host.as_str()).collect();
    assert_eq!(hosts, ["?", "n9"]);
    assert!(!a.all_hosts_known());
}

#[test]
fn uneven_launcher_counts_replace_the_schedulers() {
    let pairs = [
        ("PBS_NODEFILE", "/three"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    let a = detect_on("c", &pairs).unwrap();
    let ranks: Vec<_> = a.nodes.iter().map(|n| n.ranks.unwrap()).collect();
    assert_eq!(ranks, [2, 1, 1]);
    assert_eq!(a.this_rank.unwrap().node, Some(2));
}

#[test]
fn deepspeed_launcher_is_detected() {
    let pairs = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_SIZE", "2"),
        ("CROSS_RANK", "0"),
        ("CROSS_SIZE", "2"),
    ];
    let a = detect_on("n1", &pairs).unwrap();
    let me = a.this_rank.unwrap();
    assert_eq!((a.launcher, me.rank, me.size, me.node), (Some(Launcher::Torch), 1, 4, Some(0)));
    let mut inside = STEP.to_vec();
    inside.extend(pairs);
    assert_eq!(
        detect_on("n2", &inside).unwrap().launcher,
        Some(Launcher::Srun),
        "left over in a shell"
    );
}

#[test]
fn flux_job_is_detected() {
    let a = detect_on(
        "flux2",
        &[
            ("FLUX_JOB_ID", "ƒabc"),
            ("FLUX_JOB_NNODES", "2"),
            ("FLUX_JOB_SIZE", "8"),
            ("FLUX_TASK_RANK", "6"),
            ("FLUX_TASK_LOCAL_ID", "2"),
        ],
    )
    .unwrap();
    let me = a.this_rank.unwrap();
    assert_eq!((me.rank, me.local_rank, me.local_size, me.node), (6, 2, 4, Some(1)));
    let uneven = [
        ("FLUX_JOB_ID", "1"),
        ("FLUX_JOB_NNODES", "2"),
        ("FLUX_JOB_SIZE", "3"),
        ("FLUX_TASK_RANK", "2"),
        ("FLUX_TASK_LOCAL_ID", "0"),
    ];
    let a = detect_on("flux2", &uneven).unwrap();
    assert_eq!((a.nodes[0].ranks, a.nodes[1].ranks), (Some(2), Some(1)));
    let m = error(&[("FLUX_JOB_ID", "1"), ("FLUX_JOB_NNODES", "3")]);
    assert!(m.contains("FLUX_JOB_NNODES=3") && m.contains("2 hosts"), "{m}");
}

#[test]
fn more_ranks_than_on_the_only_node_are_rejected() {
    let m = error(&[
        ("PBS_NODEFILE", "/one"),
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "8"),
        ("MPI_LOCALRANKID", "0"),
        ("MPI_LOCALNRANKS", "4"),
    ]);
    assert!(m.contains("PMI_RANK=0 and PMI_SIZE=8") && m.contains("one node"), "{m}");
}

/// `sbatch -N2 -n3 --ntasks-per-node=2`: the list holds the maximum per node.
#[test]
fn batch_job_may_have_fewer_tasks_than_the_maximum() {
    let job = |total| {
        let pairs = [
            ("SLURM_JOB_ID", "77"),
            ("SLURM_JOB_NODELIST", "n[1-2]"),
            ("SLURM_NTASKS", total),
            ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ];
        detect_on("n1", &pairs)
            .map(|a| a.nodes.iter().map(|n| n.ranks.unwrap()).collect::<Vec<_>>())
    };
    assert_eq!(job("3").unwrap(), [2, 1]);
    assert_eq!(job("2").unwrap(), [1, 1]);
    assert!(job("5").is_err() && job("1").is_err());
}

fn hydra(rank: &'static str, local: &'static str) -> [(&'static str, &'static str); 4] {
    [("PMI_RANK", rank), ("PMI_SIZE", "6"), ("MPI_LOCALRANKID", local), ("MPI_LOCALNRANKS", "2")]
}

#[test]
fn distribution_is_inferred_from_the_local_rank() {
    let hosts = |a: &Allocation| a.nodes.iter().map(|n| n.host.clone()).collect::<Vec<_>>();
    let block = detect_on("c", &hydra("3", "1")).unwrap();
    assert_eq!((block.distribution, hosts(&block)), (Distribution::Block, own(["?", "c", "?"])));
    // Cyclic over three nodes, rank 1 is local rank 0 of the second node.
    let cyclic = detect_on("c", &hydra("1", "0")).unwrap();
    assert_eq!((cyclic.distribution, hosts(&cyclic)), (Distribution::Cyclic, own(["?", "c", "?"])));
    assert_eq!(cyclic.this_rank.unwrap().node, Some(1));
    let m = detect_on("c", &hydra("5", "0")).unwrap_err().to_string();
    assert!(m.contains("PMI_RANK=5 and PMI_SIZE=6") && m.contains("local rank 0"), "{m}");
    // Slurm's plane distribution: cyclic in blocks of two.
    let mut plane = STEP.to_vec();
    plane.retain(|(n, _)| !n.starts_with("SLURM_STEP_TASKS") && !n.ends_with("NUM_TASKS"));
    plane.extend([("SLURM_STEP_NUM_TASKS", "16"), ("SLURM_STEP_TASKS_PER_NODE", "4(x4)")]);
    let m = error(&plane);
    assert!(m.contains("--distribution=block"), "{m}");
}

fn own<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

/// The allocation from the recorded environment of a rank; two nodes with two ranks each.
fn recorded(launcher: &str, rank: u32) -> Allocation {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/fixtures/env");
    let text = std::fs::read_to_string(format!("{folder}/{launcher}-rank{rank}.env")).unwrap();
    let mut env: Vec<(String, String)> = text
        .lines()
        .filter_map(|l| l.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    for (_, value) in env.iter_mut().filter(|(n, _)| n == "PBS_NODEFILE") {
        "/pbs-nodefile".clone_into(value);
    }
    let env: Env = env.into_iter().collect();
    let host = format!("node{}", rank / 2 + 1);
    let root = Root::at(folder);
    detect(&DetectionInputs {
        env: &env,
        root: &root,
        host: &host,
        hostfile: None,
        flux_hosts: &|| None,
    })
    .unwrap()
}

#[test]
fn recorded_launcher_environments_are_detected() {
    let launchers = [
        ("slurm-srun", Launcher::Srun, true),
        ("slurm-pmi2", Launcher::Srun, true),
        ("slurm-pmix", Launcher::Srun, true),
        ("slurm-gpus-per-task", Launcher::Srun, true),
        ("slurm-gpus-per-node", Launcher::Srun, true),
        ("slurm-hydra", Launcher::Hydra, true),
        ("slurm-openmpi", Launcher::OpenMpi, true),
        ("mpich-hydra", Launcher::Hydra, false),
        ("pbs-hydra", Launcher::Hydra, true),
        ("openmpi", Launcher::OpenMpi, false),
    ];
    for (name, launcher, hosts_known) in launchers {
        for rank in 0..4 {
            let a = recorded(name, rank);
            let me = a.this_rank.unwrap();
            assert_eq!(a.launcher, Some(launcher), "{name} {rank}");
            let seen = (me.rank, me.size, me.local_rank, me.local_size, me.node);
            assert_eq!(seen, (rank, 4, rank % 2, 2, Some(rank / 2)), "{name}");
            assert_eq!(a.nodes.len(), 2, "{name} {rank}");
            assert!(a.nodes.iter().all(|n| n.ranks == Some(2)), "{name} {rank}: {:?}", a.nodes);
            assert_eq!(a.all_hosts_known(), hosts_known, "{name} {rank}");
        }
    }
    let batch = recorded("slurm-batch", 0);
    assert_eq!((batch.this_rank, batch.nodes[0].ranks), (None, Some(2)));
}
