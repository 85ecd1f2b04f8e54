//! On a node that claims 128 CPUs, tasks are bound as on a real one.

use regatta_testbed::lumi::{HWLOC, MASKS};
use regatta_testbed::{Cluster, cluster_or_skip, run};
use std::process::Command;

/// Writes the hwloc XML file of a LUMI node; `None` where hwloc is not installed.
fn lumi_xml(file: &std::path::Path) -> Option<()> {
    let mut lstopo = Command::new("lstopo-no-graphics");
    let made = run(lstopo.args(["-i", HWLOC, "--of", "xml", "--force"]).arg(file));
    let missing = match made {
        Ok(output) if output.status.success() => vec![],
        _ => vec!["no program lstopo-no-graphics (Debian package hwloc-nox)".to_owned()],
    };
    regatta_testbed::or_skip(&missing)
}

fn lumi_node(test: &str) -> Option<Cluster> {
    let file = std::env::temp_dir().join(format!("{test}-{}.xml", std::process::id()));
    lumi_xml(&file)?;
    let slurm = "Sockets=1 CoresPerSocket=64 ThreadsPerCore=2";
    let builder = Cluster::builder().nodes(1).topology(&file, 128, slurm).fake_affinity(true);
    let cluster = cluster_or_skip(&builder);
    std::fs::remove_file(file).unwrap();
    cluster
}

#[test]
fn srun_binds_tasks_to_the_masks_of_lumi() {
    let Some(cluster) = lumi_node("srun-binds") else { return };
    let bind = format!("--cpu-bind=mask_cpu:{}", MASKS.join(","));
    // The mask of the task itself, and of a child that inherits it.
    let script = "echo $SLURM_LOCALID $(taskset -p $$) $(sh -c 'taskset -p $$')";
    let args = ["-N1", "-n8", "-c16", &bind, "sh", "-c", script];
    let output = run(&mut cluster.login("srun", args)).unwrap().expect_success();
    let mut lines: Vec<&str> = output.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 8, "{}{}", output.stdout, output.stderr);
    for (local, (line, mask)) in lines.iter().zip(MASKS).enumerate() {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], local.to_string());
        let seen: Vec<&str> =
            line.split("mask: ").skip(1).filter_map(|t| t.split(' ').next()).collect();
        assert_eq!(seen, [mask, mask], "{line}");
    }
}

#[test]
fn libc_reports_claimed_cpus_and_the_kernel_real_ones() {
    let Some(cluster) = lumi_node("libc-shows") else { return };
    let shown = |script: &str| {
        cluster.bash("node1", script).unwrap().expect_success().stdout.trim().to_owned()
    };
    assert_eq!(shown("taskset -cp $$ | sed 's/.*: //'"), "0-127");
    assert_eq!(shown("taskset -c 100-103,200 taskset -cp 1 | sed 's/.*: //'"), "0-127");
    assert_eq!(shown("taskset -c 100-103 bash -c 'taskset -cp $$' | sed 's/.*: //'"), "100-103");
    // As in the kernel, CPUs beyond the last are ignored, but one must remain.
    assert_eq!(shown("taskset -c 127-200 bash -c 'taskset -cp $$' | sed 's/.*: //'"), "127");
    assert_eq!(shown("taskset -c 128 true 2>/dev/null || echo refused"), "refused");
    let real = "taskset -c 100-103 grep Cpus_allowed_list /proc/self/status | cut -f2";
    let online = std::fs::read_to_string("/proc/self/status").unwrap();
    let online = online.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    assert_eq!(shown(real), online);
}
