use regatta_model::{Allocation, Distribution, Launcher, Scheduler};

use super::{AllocationError, DetectionInputs, detect};
use crate::{Env, Sysroot};

/// Detects the allocation from an environment of `NAME=value` words; the last of a name applies.
fn detect_on(host: &str, env: &str) -> Result<Allocation, AllocationError> {
    let env: Env = env.split_whitespace().filter_map(|word| word.split_once('=')).collect();
    let root = Sysroot::at(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/hostfiles"));
    let flux_hosts = &|| Some("flux[1-2]".to_owned());
    detect(&DetectionInputs { env: &env, root: &root, host, hostfile: None, flux_hosts })
}

fn allocation(host: &str, env: &str) -> Allocation {
    detect_on(host, env).unwrap()
}

fn error(env: &str) -> String {
    detect_on("n1", env).unwrap_err().to_string()
}

/// Rank, size, local rank, local size and node of this process.
fn rank_of(allocation: &Allocation) -> (u32, u32, u32, u32, Option<u32>) {
    let me = allocation.this_rank.unwrap();
    (me.rank, me.size, me.local_rank, me.local_size, me.node)
}

fn ranks_per_node(allocation: &Allocation) -> Vec<Option<u32>> {
    allocation.nodes.iter().map(|n| n.ranks).collect()
}

fn hosts(allocation: &Allocation) -> Vec<&str> {
    allocation.nodes.iter().map(|n| n.host.as_str()).collect()
}

const STEP: &str = "SLURM_JOB_ID=77 SLURM_CLUSTER_NAME=lumi SLURM_STEP_ID=0 \
    SLURM_STEP_NODELIST=n[1-4] SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=7 \
    SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1";

#[test]
fn empty_environment_is_the_local_node() {
    assert_eq!(allocation("laptop", ""), Allocation::single_node("laptop"));
}

#[test]
fn slurm_step_is_detected() {
    let a = allocation("n2", STEP);
    assert_eq!((a.scheduler, a.launcher), (Scheduler::Slurm, Some(Launcher::Srun)));
    assert_eq!(hosts(&a), ["n1", "n2", "n3", "n4"]);
    assert_eq!(ranks_per_node(&a), [2, 2, 2, 1].map(Some));
    assert_eq!(rank_of(&a), (3, 7, 1, 2, Some(1)));
    assert_eq!(a.cluster.as_deref(), Some("lumi"));
    assert!(a.evidence.iter().any(|e| e.name == "SLURM_STEP_NODELIST"));
}

#[test]
fn batch_script_is_not_a_rank() {
    let env = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[1-2] SLURM_NNODES=2 SLURM_NTASKS=16 \
        SLURM_TASKS_PER_NODE=8(x2) SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_DISTRIBUTION=cyclic:block";
    let a = allocation("n1", env);
    assert_eq!(a.this_rank, None);
    assert_eq!(a.nodes[1].ranks, Some(8));
    assert_eq!(a.distribution, Distribution::Cyclic);
}

/// The environment of an `salloc` shell that Slurm opens on the first node.
const SALLOC_SHELL: &str = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[1-4] SLURM_JOB_NUM_NODES=4 \
    SLURM_NNODES=4 SLURM_NTASKS=32 SLURM_TASKS_PER_NODE=8(x4) SLURM_STEP_ID=4294967290 \
    SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 \
    SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 PMIX_RANK=0 \
    PMI_RANK=0";

fn open_mpi(rank: u32, size: u32, local_rank: u32, local_size: u32) -> String {
    format!(
        "OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE={size} \
         OMPI_COMM_WORLD_LOCAL_RANK={local_rank} OMPI_COMM_WORLD_LOCAL_SIZE={local_size}"
    )
}

#[test]
fn salloc_shell_is_not_a_rank() {
    let a = allocation("n1", SALLOC_SHELL);
    assert_eq!((a.this_rank, a.launcher), (None, None));
    assert_eq!((a.nodes.len(), a.nodes[3].ranks), (4, Some(8)));
    // A launcher started in it sets its own variables.
    let a = allocation("n3", &format!("{SALLOC_SHELL} {}", open_mpi(9, 16, 1, 4)));
    assert_eq!((a.launcher, a.this_rank.unwrap().node), (Some(Launcher::OpenMpi), Some(2)));
}

#[test]
fn slurm_with_pals_variables_is_slurm() {
    // Older versions do not set the sizes.
    let old = "PALS_APID=77.0 PALS_RANKID=3 PALS_NODEID=1";
    let new = format!(
        "{old} PALS_LOCAL_RANKID=1 PMI_RANK=3 PMI_SIZE=7 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2"
    );
    for pals in [old, &new] {
        let a = allocation("n2", &format!("{STEP} {pals}"));
        assert_eq!(a.launcher, Some(Launcher::Srun), "{pals}");
        assert_eq!(a.nodes[3].ranks, Some(1), "the step's own counts");
    }
    let shell = format!("{SALLOC_SHELL} PALS_APID=77.4294967290 PALS_RANKID=0");
    assert_eq!(allocation("n1", &shell).this_rank, None);
}

#[test]
fn step_of_another_job_is_rejected() {
    let m = error(&format!("{STEP} SLURM_JOB_NODELIST=n[1-3],m7"));
    assert!(m.contains("SLURM_STEP_NODELIST=n[1-4] and SLURM_JOB_NODELIST=n[1-3],m7"), "{m}");
    assert!(m.contains("n4 is in the step but not in the job"), "{m}");
    let part = format!("{STEP} SLURM_JOB_NODELIST=n[0-9]");
    assert!(detect_on("n2", &part).is_ok(), "a step on some of the job's nodes");
}

#[test]
fn tasks_per_node_without_a_total_are_ignored() {
    let env = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=128(x2)";
    assert_eq!(allocation("n1", env).nodes[0].ranks, None);
}

#[test]
fn ntasks_per_node_is_used_without_ntasks() {
    let env = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[1-2] SLURM_NTASKS_PER_NODE=4 \
        SLURM_TASKS_PER_NODE=4(x2)";
    assert_eq!(ranks_per_node(&allocation("n1", env)), [Some(4), Some(4)]);
}

#[test]
fn contradictions_name_both_variables() {
    let two_of_four = "SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-4] SLURM_NNODES=2 SLURM_NTASKS=16 \
        SLURM_TASKS_PER_NODE=8(x2)";
    let m = error(two_of_four);
    assert!(m.contains("SLURM_JOB_NODELIST=n[1-4] and SLURM_NNODES=2"), "{m}");
    let counts = "SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_NNODES=4";
    let m = error(counts);
    assert!(m.contains("SLURM_NNODES=4"), "{m}");
    let cases: [(&str, &[&str]); 7] = [
        (
            "SLURM_STEP_TASKS_PER_NODE=8(x2)",
            &["SLURM_STEP_NODELIST=n[1-4] and SLURM_STEP_TASKS_PER_NODE=8(x2)"],
        ),
        ("SLURM_STEP_NUM_TASKS=8", &["SLURM_STEP_NUM_TASKS=8", "add up to 7"]),
        ("SLURM_PROCID=9", &["SLURM_PROCID=9 and SLURM_STEP_NUM_TASKS=7"]),
        ("SLURM_LOCALID=2", &["local rank 2 with 2 ranks"]),
        ("SLURM_NODEID=4", &["4 nodes"]),
        ("SLURM_STEP_NUM_TASKS=many", &["SLURM_STEP_NUM_TASKS=\"many\" is not a number"]),
        ("SLURM_STEP_NODELIST=n[1-", &["SLURM_STEP_NODELIST: the bracket at byte 1"]),
    ];
    for (change, parts) in cases {
        let m = error(&format!("{STEP} {change}"));
        assert!(parts.iter().all(|part| m.contains(part)), "{change}: {m}");
    }
}

#[test]
fn missing_variables_are_named() {
    let cases = [
        ("SLURM_JOB_ID=1", "SLURM_JOB_NODELIST is not"),
        ("PBS_JOBID=1.pbs", "PBS_NODEFILE is not"),
        ("PBS_JOBID=1.pbs PBS_NODEFILE=/no/such/file", "PBS_NODEFILE=/no/such/file: No such file"),
        ("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not"),
        ("PMIX_RANK=0", "PMIX_SIZE is not"),
    ];
    for (env, part) in cases {
        let m = error(env);
        assert!(m.contains(part), "{env}: {m}");
    }
}

#[test]
fn pals_in_a_pbs_job_is_detected() {
    let env = "PBS_JOBID=3061463.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov \
        PBS_NODEFILE=/two-by-slot PALS_RANKID=5 PMI_RANK=5 PMI_SIZE=8 PALS_LOCAL_RANKID=1 \
        PALS_LOCAL_SIZE=4";
    let a = allocation("x2.hsn.cm", env);
    assert_eq!((a.scheduler, a.launcher), (Scheduler::Pbs, Some(Launcher::Pals)));
    assert_eq!(rank_of(&a), (5, 8, 1, 4, Some(1)));
    assert!(a.nodes.iter().all(|n| n.ranks == Some(4)));
}

#[test]
fn pals_rank_without_node_file_knows_itself() {
    // The second node of a job on Aurora: the node file is on the first one only.
    let rank = "PBS_JOBID=1234567.aurora-pbs-0001.hostmgmt.cm.aurora.alcf.anl.gov PALS_RANKID=14 \
        PALS_NODEID=1 PALS_APID=d6c2 PMI_RANK=14 PMI_SIZE=24 PALS_LOCAL_RANKID=2 \
        PALS_LOCAL_SIZE=12";
    for file in ["", "PBS_NODEFILE=/var/spool/pbs/aux/1234567.aurora-pbs-0001"] {
        let a = allocation("x4520c1s0b0n0", &format!("{rank} {file}"));
        assert_eq!((a.scheduler, a.launcher), (Scheduler::Pbs, Some(Launcher::Pals)));
        assert_eq!(rank_of(&a), (14, 24, 2, 12, Some(1)));
        assert_eq!(hosts(&a), ["?", "x4520c1s0b0n0"]);
        // The port is derived from the job, as on the first node.
        assert!(a.job_id.unwrap().starts_with("1234567.aurora"));
    }
    // 30 ranks, 12 per node: the last node has six.
    let last = "PBS_JOBID=1.pbs PALS_RANKID=29 PALS_NODEID=2 PMI_SIZE=30 PALS_LOCAL_RANKID=5 \
        PALS_LOCAL_SIZE=6";
    let a = allocation("x3", last);
    assert_eq!(rank_of(&a), (29, 30, 5, 6, Some(2)));
    assert_eq!(ranks_per_node(&a), [12, 12, 6].map(Some));
    let first = "PBS_JOBID=1.pbs PALS_RANKID=3 PALS_NODEID=0 PMI_SIZE=30 PALS_LOCAL_RANKID=3 \
        PALS_LOCAL_SIZE=12";
    assert_eq!(allocation("x1", first).nodes.len(), 3);
    let script = error("PBS_JOBID=1.pbs PBS_NODEFILE=/no/such/file");
    assert!(script.contains("No such file"), "the job script needs the node file: {script}");
}

#[test]
fn variables_of_two_schedulers_are_rejected() {
    let slurm = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[1-2] SLURM_NNODES=2";
    for pbs in ["PBS_JOBID=5.pbs", "PBS_JOBID=5.pbs PBS_NODEFILE=/three"] {
        let error = error(&format!("{slurm} {pbs}"));
        assert!(error.starts_with("SLURM_JOB_ID=77 and PBS_JOBID=5.pbs contradict"), "{error}");
        assert!(error.contains("--hostfile"), "{error}");
    }
    let both = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=a,b,c PBS_JOBID=5.pbs PBS_NODEFILE=/three";
    assert_eq!(allocation("a", both).scheduler, Scheduler::Slurm, "both name the same nodes");
}

#[test]
fn uneven_step_is_detected_without_its_task_list() {
    let step = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[1-2] SLURM_STEP_ID=0 \
        SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_NTASKS=9 SLURM_PROCID=8 \
        SLURM_LOCALID=0 SLURM_NODEID=1";
    for list in ["SLURM_STEP_TASKS_PER_NODE=8,1 SLURM_STEP_NUM_TASKS=9", "SLURM_TASKS_PER_NODE=8,1"]
    {
        let a = allocation("n2", &format!("{step} {list}"));
        assert_eq!(ranks_per_node(&a), [8, 1].map(Some), "{list}");
        assert_eq!(rank_of(&a), (8, 9, 0, 1, Some(1)), "{list}");
    }
    let other = allocation("n2", &format!("{step} SLURM_TASKS_PER_NODE=8(x2)"));
    assert_eq!(ranks_per_node(&other), [None, None], "the list of the job, not of the step");
}

#[test]
fn open_mpi_in_a_slurm_job_is_open_mpi() {
    let env = format!("{STEP} SLURM_JOB_NODELIST=n[1-4] {}", open_mpi(15, 16, 3, 4));
    let a = allocation("n4", &env);
    assert_eq!(a.launcher, Some(Launcher::OpenMpi));
    assert_eq!(rank_of(&a), (15, 16, 3, 4, Some(3)));
    assert!(a.nodes.iter().all(|n| n.ranks == Some(4)));
}

#[test]
fn hydra_without_scheduler_keeps_the_world_size() {
    let a = allocation("n9", "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2");
    assert_eq!(a.this_rank.unwrap().size, 4);
    assert_eq!(hosts(&a), ["?", "n9"]);
    assert!(!a.all_hosts_known());
}

#[test]
fn uneven_launcher_counts_replace_the_schedulers() {
    let a = allocation("c", &format!("PBS_NODEFILE=/three {}", open_mpi(3, 4, 0, 1)));
    assert_eq!(ranks_per_node(&a), [2, 1, 1].map(Some));
    assert_eq!(a.this_rank.unwrap().node, Some(2));
}

#[test]
fn deepspeed_launcher_is_detected() {
    let env = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_SIZE=2 CROSS_RANK=0 CROSS_SIZE=2";
    let a = allocation("n1", env);
    assert_eq!((a.launcher, rank_of(&a)), (Some(Launcher::Torch), (1, 4, 1, 2, Some(0))));
    let inside = allocation("n2", &format!("{STEP} {env}"));
    assert_eq!(inside.launcher, Some(Launcher::Srun), "left over in a shell");
}

#[test]
fn flux_job_is_detected() {
    let env = |size, rank, local_rank| {
        format!(
            "FLUX_JOB_ID=ƒabc FLUX_JOB_NNODES=2 FLUX_JOB_SIZE={size} FLUX_TASK_RANK={rank} \
             FLUX_TASK_LOCAL_ID={local_rank}"
        )
    };
    assert_eq!(rank_of(&allocation("flux2", &env(8, 6, 2))), (6, 8, 2, 4, Some(1)));
    let uneven = allocation("flux2", &env(3, 2, 0));
    assert_eq!(ranks_per_node(&uneven), [Some(2), Some(1)]);
    let batch = allocation("flux1", "FLUX_ENCLOSING_ID=ƒabc");
    assert_eq!((batch.job_id.as_deref(), batch.nodes.len()), (Some("ƒabc"), 2));
    let m = error("FLUX_JOB_ID=1 FLUX_JOB_NNODES=3");
    assert!(m.contains("FLUX_JOB_NNODES=3") && m.contains("2 hosts"), "{m}");
}

#[test]
fn more_ranks_than_on_the_only_node_are_rejected() {
    let env = "PBS_NODEFILE=/one PMI_RANK=0 PMI_SIZE=8 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=4";
    let m = error(env);
    assert!(m.contains("PMI_RANK=0 and PMI_SIZE=8") && m.contains("one node"), "{m}");
}

/// `sbatch -N2 -n3 --ntasks-per-node=2`: the list holds the maximum per node.
#[test]
fn batch_job_may_have_fewer_tasks_than_the_maximum() {
    let job = |total| {
        let env = "SLURM_JOB_ID=77 SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2)";
        let allocation = detect_on("n1", &format!("{env} SLURM_NTASKS={total}"));
        allocation.map(|a| ranks_per_node(&a))
    };
    assert_eq!(job(3).unwrap(), [Some(2), Some(1)]);
    assert_eq!(job(2).unwrap(), [Some(1), Some(1)]);
    assert!(job(5).is_err() && job(1).is_err());
}

#[test]
fn distribution_is_inferred_from_the_local_rank() {
    let hydra = |rank, local| {
        let env = format!("PMI_RANK={rank} PMI_SIZE=6 MPI_LOCALRANKID={local} MPI_LOCALNRANKS=2");
        detect_on("c", &env)
    };
    let block = hydra(3, 1).unwrap();
    assert_eq!((block.distribution, hosts(&block)), (Distribution::Block, vec!["?", "c", "?"]));
    // Cyclic over three nodes, rank 1 is local rank 0 of the second node.
    let cyclic = hydra(1, 0).unwrap();
    assert_eq!((cyclic.distribution, hosts(&cyclic)), (Distribution::Cyclic, vec!["?", "c", "?"]));
    assert_eq!(cyclic.this_rank.unwrap().node, Some(1));
    let m = hydra(5, 0).unwrap_err().to_string();
    assert!(m.contains("PMI_RANK=5 and PMI_SIZE=6") && m.contains("local rank 0"), "{m}");
    // Slurm's plane distribution: cyclic in blocks of two.
    let plane = "SLURM_STEP_NUM_TASKS=16 SLURM_STEP_TASKS_PER_NODE=4(x4)";
    let m = error(&format!("{STEP} {plane}"));
    assert!(m.contains("--distribution=block"), "{m}");
}

/// The allocation from the recorded environment of a rank; two nodes with two ranks each.
fn recorded(launcher: &str, rank: u32) -> Allocation {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../testbed/fixtures/env");
    let text = std::fs::read_to_string(format!("{dir}/{launcher}-rank{rank}.env")).unwrap();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let relocate = |(name, value)| match name {
        "PBS_NODEFILE" => (name, "/pbs-nodefile"),
        _ => (name, value),
    };
    let env: Env = pairs.map(relocate).collect();
    let (root, host) = (&Sysroot::at(dir), &format!("node{}", rank / 2 + 1));
    let flux_hosts = &|| None;
    detect(&DetectionInputs { env: &env, root, host, hostfile: None, flux_hosts }).unwrap()
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
            assert_eq!(a.launcher, Some(launcher), "{name} {rank}");
            assert_eq!(rank_of(&a), (rank, 4, rank % 2, 2, Some(rank / 2)), "{name}");
            assert_eq!(a.nodes.len(), 2, "{name} {rank}");
            assert!(a.nodes.iter().all(|n| n.ranks == Some(2)), "{name} {rank}: {:?}", a.nodes);
            assert_eq!(a.all_hosts_known(), hosts_known, "{name} {rank}");
        }
    }
    let batch = recorded("slurm-batch", 0);
    assert_eq!((batch.this_rank, batch.nodes[0].ranks), (None, Some(2)));
}
