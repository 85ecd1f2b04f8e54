//! Limits and resources of the operating system.

use std::thread;
use std::time::Duration;

use regatta_discover::{Sysroot, procfs};
use regatta_model::Machine;

use super::file_systems::TestFile;
use crate::facts::OsFacts;

const SHM: &str = "/dev/shm";
/// Time between two readings of the CPU times.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn collect(root: &Sysroot, machine: &Machine) -> OsFacts {
    let limits = root.read_text("/proc/self/limits").unwrap_or_default();
    let limit = |name: &str| procfs::limit(&limits, name);
    let memory = root.read_text("/proc/meminfo").unwrap_or_default();
    let mut facts = OsFacts {
        open_files: limit("Max open files"),
        max_processes: limit("Max processes").map(|(soft, _)| soft),
        memlock: limit("Max locked memory").map(|(soft, _)| soft),
        shm_total: machine.os.shm_bytes,
        memory_total: procfs::memory(&memory, "MemTotal:"),
        memory_available: procfs::memory(&memory, "MemAvailable:"),
        memory_errors: memory_errors(root),
        cpu_quota: cpu_quota(root),
        cpu_governor: governors(root),
        uptime: root.read_text("/proc/uptime").and_then(|text| parse_uptime(&text)),
        ..OsFacts::default()
    };
    facts.memory_limit = memory_limit(root).filter(|limit| Some(*limit) < facts.memory_total);
    if root.is_live() {
        test_shm(root, &mut facts);
        facts.busy_cpus = busy_cpus(root);
    }
    facts
}

fn parse_uptime(text: &str) -> Option<u64> {
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    (seconds >= 0.0).then_some(seconds as u64)
}

/// Uncorrectable errors of all memory controllers; `None` without EDAC.
fn memory_errors(root: &Sysroot) -> Option<u64> {
    const CONTROLLERS: &str = "/sys/devices/system/edac/mc";
    let read = |name: String| root.read_value::<u64>(&format!("{CONTROLLERS}/{name}/ue_count"));
    let counts: Vec<u64> = root.list_dir(CONTROLLERS).into_iter().filter_map(read).collect();
    (!counts.is_empty()).then(|| counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count)))
}

/// The frequency policies in use, usually one.
fn governors(root: &Sysroot) -> Option<String> {
    const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";
    let read = |name: &String| root.read_text(&format!("{POLICIES}/{name}/scaling_governor"));
    let mut found: Vec<String> = root.list_dir(POLICIES).iter().filter_map(read).collect();
    found.sort_unstable();
    found.dedup();
    (!found.is_empty()).then(|| found.join(","))
}

/// The lowest memory limit of the cgroup and its parents.
fn memory_limit(root: &Sysroot) -> Option<u64> {
    let dirs = procfs::cgroup_dirs(root, "memory");
    let files = ["memory.max", "memory.limit_in_bytes"];
    let paths = dirs.iter().flat_map(|dir| files.map(|file| format!("{dir}/{file}")));
    paths.filter_map(|path| root.read_value::<u64>(&path)).min()
}

/// The lowest CPU quota of the cgroup and its parents, in CPUs.
fn cpu_quota(root: &Sysroot) -> Option<f64> {
    let quota = |dir: &String| {
        let v2 = root.read_text(&format!("{dir}/cpu.max"));
        let v1 = || {
            let read = |file: &str| root.read_text(&format!("{dir}/{file}"));
            Some(format!("{} {}", read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?))
        };
        parse_quota(&v2.or_else(v1)?)
    };
    procfs::cgroup_dirs(root, "cpu").iter().filter_map(quota).min_by(f64::total_cmp)
}

/// CPUs of `150000 100000`: time per period. `max` and -1 are unlimited.
fn parse_quota(text: &str) -> Option<f64> {
    let (time, period) = text.split_once(' ')?;
    let (time, period): (f64, f64) = (time.parse().ok()?, period.trim().parse().ok()?);
    (time > 0.0 && period > 0.0).then(|| time / period)
}

/// Free space of `/dev/shm`, and whether a file can be created there.
fn test_shm(root: &Sysroot, facts: &mut OsFacts) {
    let dir = root.path(SHM);
    match rustix::fs::statvfs(&dir) {
        Ok(stat) => {
            facts.shm_total = stat.f_blocks.checked_mul(stat.f_frsize);
            facts.shm_free = stat.f_bavail.checked_mul(stat.f_frsize);
            facts.shm_error = TestFile::create(&dir).err().map(|error| error.to_string());
        }
        Err(error) => facts.shm_error = Some(std::io::Error::from(error).to_string()),
    }
}

/// The share of CPU time that all processes used in a short interval.
fn busy_cpus(root: &Sysroot) -> Option<f64> {
    let read = || parse_cpu_times(&root.read_text("/proc/stat")?);
    let before = read()?;
    thread::sleep(BUSY_INTERVAL);
    let after = read()?;
    let (busy, all) = (after.0.checked_sub(before.0)?, after.1.checked_sub(before.1)?);
    (all > 0).then(|| busy as f64 / all as f64)
}

/// Busy and total time of the line `cpu  user nice system idle iowait irq softirq steal ...`.
fn parse_cpu_times(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Option<Vec<u64>> =
        line.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
    let times = times.filter(|times| times.len() >= 5)?;
    let all = times.iter().fold(0u64, |sum, time| sum.saturating_add(*time));
    Some((all.saturating_sub(times[3].saturating_add(times[4])), all))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::TempTree;

    #[test]
    fn limits_and_memory_are_parsed() {
        let tree = TempTree::new();
        tree.file(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max processes             unlimited            unlimited            processes\n\
             Max open files            1024                 524288               files\n\
             Max locked memory         8388608              8388608              bytes\n",
        );
        tree.file("/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    900 kB\n");
        tree.file("/proc/uptime", "350735.47 234388.90\n");
        tree.file("/sys/devices/system/edac/mc/mc0/ue_count", "1\n");
        tree.file("/sys/devices/system/edac/mc/mc1/ue_count", "2\n");
        tree.file("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance\n");
        let machine = Machine::default();
        let expected = OsFacts {
            open_files: Some((1024, 524_288)),
            max_processes: Some(u64::MAX),
            memlock: Some(8 << 20),
            memory_total: Some(1_024_000),
            memory_available: Some(921_600),
            memory_errors: Some(3),
            cpu_governor: Some("performance".to_owned()),
            uptime: Some(350_735),
            ..OsFacts::default()
        };
        assert_eq!(collect(&tree.root(), &machine), expected);
    }

    #[test]
    fn the_lowest_limit_of_nested_cgroups_counts() {
        let tree = TempTree::new();
        tree.file("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
        tree.file("/proc/meminfo", "MemTotal: 1000000 kB\n");
        tree.file("/sys/fs/cgroup/slurm/job_7/memory.max", "4096000\n");
        tree.file("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
        tree.file("/sys/fs/cgroup/slurm/job_7/cpu.max", "150000 100000\n");
        tree.file("/sys/fs/cgroup/slurm/cpu.max", "max 100000\n");
        let facts = collect(&tree.root(), &Machine::default());
        assert_eq!((facts.memory_limit, facts.cpu_quota), (Some(4_096_000), Some(1.5)));
    }

    #[test]
    fn controllers_of_cgroup_v1_are_read() {
        let tree = TempTree::new();
        tree.file("/proc/self/cgroup", "4:memory:/slurm\n2:cpu,cpuacct:/slurm\n0::/\n");
        tree.file("/proc/meminfo", "MemTotal: 1000000 kB\n");
        tree.file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        tree.file("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "8192000\n");
        tree.file("/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "200000\n");
        tree.file("/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000\n");
        let facts = collect(&tree.root(), &Machine::default());
        assert_eq!((facts.memory_limit, facts.cpu_quota), (Some(8_192_000), Some(2.0)));
        tree.file("/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "-1\n");
        assert_eq!(cpu_quota(&tree.root()), None);
    }

    #[test]
    fn cpu_times_are_parsed() {
        let stat = "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_cpu_times(stat), Some((150, 1000)));
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text in "(Max open files|MemTotal:|cpu )?[ a-z0-9:.\n-]*") {
            let _ = procfs::limit(&text, "Max open files");
            let _ = procfs::memory(&text, "MemTotal:");
            let _ = parse_uptime(&text);
            let _ = parse_quota(&text);
            let _ = parse_cpu_times(&text);
        }
    }
}
