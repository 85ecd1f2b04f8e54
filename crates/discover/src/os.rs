//! Operating-system limits and settings: container, memlock, shared memory, huge pages, domains.

use regatta_model::Os;
use regatta_model::machine::HugePages;

use crate::env::Env;
use crate::procfs;
use crate::sysroot::Sysroot;

/// Reads all of them.
pub(crate) fn scan(root: &Sysroot, env: &Env, host: &str) -> Os {
    let memlock = memlock(root);
    Os {
        kernel: root.read_text("/proc/sys/kernel/osrelease"),
        domains: domains(root, host),
        container: container(root, env),
        memlock_bytes: memlock.flatten(),
        memlock_known: memlock.is_some(),
        shm_bytes: shm(root),
        hugepages: hugepages(root),
    }
}

/// The host name: the kernel's, or the file in a recorded tree.
pub(crate) fn hostname(root: &Sysroot) -> String {
    let mut files = ["/proc/sys/kernel/hostname", "/etc/hostname"].into_iter();
    let read = |file| root.read_text(file).map(|name| name.trim().to_owned());
    let name = files.find_map(|file| read(file).filter(|name| !name.is_empty()));
    name.unwrap_or_else(|| "localhost".to_owned())
}

fn domains(root: &Sysroot, host: &str) -> Vec<String> {
    let mut domains: Vec<String> = Vec::new();
    let own = host.split_once('.').map(|(_, domain)| domain);
    let resolver = root.read_text("/etc/resolv.conf").unwrap_or_default();
    let listed = resolver.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("search" | "domain")).then_some(words)
    });
    for domain in own.into_iter().chain(listed.flatten()).map(|d| d.trim_matches('.')) {
        if !domain.is_empty() && !domains.iter().any(|known| known == domain) {
            domains.push(domain.to_owned());
        }
    }
    domains
}

fn container(root: &Sysroot, env: &Env) -> Option<String> {
    let by_variable = [
        ("APPTAINER_CONTAINER", "apptainer"),
        ("SINGULARITY_CONTAINER", "singularity"),
        ("SARUS_CONTAINER", "sarus"),
        ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ];
    let by_file = [
        ("/.singularity.d", "apptainer"),
        ("/.dockerenv", "docker"),
        ("/run/.containerenv", "podman"),
    ];
    let by_variable = by_variable.iter().find(|(name, _)| env.is_set(name));
    let found = by_variable.or_else(|| by_file.iter().find(|(path, _)| root.exists(path)));
    found.map(|(_, runtime)| *runtime).or_else(|| env.get("container")).map(str::to_owned)
}

/// Outer `None`: unknown; inner `None`: unlimited.
fn memlock(root: &Sysroot) -> Option<Option<u64>> {
    let limits = root.read_text("/proc/self/limits")?;
    let (soft, _) = procfs::limit(&limits, "Max locked memory")?;
    Some((soft != u64::MAX).then_some(soft))
}

fn shm(root: &Sysroot) -> Option<u64> {
    if root.is_live() {
        let stat = rustix::fs::statvfs("/dev/shm").ok()?;
        return stat.f_blocks.checked_mul(stat.f_frsize);
    }
    let mounts = root.read_text("/proc/self/mounts")?;
    let line = mounts.lines().find(|l| l.split_whitespace().nth(1) == Some("/dev/shm"))?;
    let options = line.split_whitespace().nth(3)?;
    let size = options.split(',').find_map(|o| o.strip_prefix("size="))?;
    size.strip_suffix('k')?.parse::<u64>().ok()?.checked_mul(1024)
}

fn hugepages(root: &Sysroot) -> Vec<HugePages> {
    const DIR: &str = "/sys/kernel/mm/hugepages";
    let pages = |name: String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some(HugePages {
            page_bytes: kib.checked_mul(1024)?,
            total: root.read_value(&format!("{DIR}/{name}/nr_hugepages"))?,
            free: root.read_value(&format!("{DIR}/{name}/free_hugepages"))?,
        })
    };
    root.list_dir(DIR).into_iter().filter_map(pages).filter(|p| p.total > 0).collect()
}
