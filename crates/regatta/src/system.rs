//! Queries to the operating system: memory policy and limits.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use regatta_discover::procfs;
use regatta_model::CpuSet;
use regatta_place::check::ActualMemoryPolicy;
use regatta_predict::memory_check::MemoryLimit;

/// NUMA memory policy of this thread.
pub fn memory_policy() -> ActualMemoryPolicy {
    const WORDS: usize = 64;
    let mut mode: libc::c_int = 0;
    let mut mask = [0u64; WORDS];
    // SAFETY: the kernel writes one int to `mode` and at most WORDS*64 bits to `mask`; the address
    // argument is unused with flags 0.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            WORDS * 64,
            std::ptr::null::<libc::c_void>(),
            0,
        )
    };
    if result != 0 {
        return ActualMemoryPolicy::Unknown;
    }
    let nodes: CpuSet = (0..WORDS * 64).filter(|n| mask[n / 64] & (1 << (n % 64)) != 0).collect();
    // The upper bits are flags.
    match mode & 0xff {
        libc::MPOL_PREFERRED if nodes.is_empty() => ActualMemoryPolicy::Default,
        // 5 is MPOL_PREFERRED_MANY.
        libc::MPOL_PREFERRED | 5 => ActualMemoryPolicy::Prefer(nodes),
        libc::MPOL_BIND => ActualMemoryPolicy::Bind(nodes),
        libc::MPOL_INTERLEAVE => ActualMemoryPolicy::Interleave(nodes),
        _ => ActualMemoryPolicy::Default,
    }
}

/// Bytes of memory available to this process: the minimum over the node and all enclosing cgroups.
pub fn available_memory() -> Option<u64> {
    memory_limits("").into_iter().map(|limit| limit.free).min()
}

/// The memory limits of this process, each with the bytes available now: the node, its cgroup and
/// all enclosing cgroups.
pub fn memory_limits(host: &str) -> Vec<MemoryLimit> {
    memory_limits_below(Path::new("/"), host).unwrap_or_default()
}

fn memory_limits_below(root: &Path, host: &str) -> Option<Vec<MemoryLimit>> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let free = procfs::memory(&text, "MemAvailable:")?;
    let machine = MemoryLimit { id: id(&(host, 0u8, 0u64)), free, name: "this node".to_owned() };
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    let cgroups = text.lines().flat_map(|line| cgroup_limits(&mount, line, host));
    Some([machine].into_iter().chain(cgroups).collect())
}

/// The memory limits of a cgroup and of those that enclose it. A line of /proc/self/cgroup is
/// `id:controllers:/path`, without controllers in version 2.
fn cgroup_limits(mount: &Path, line: &str, host: &str) -> Vec<MemoryLimit> {
    let parts = line.split_once(':').and_then(|(_, rest)| rest.split_once(":/"));
    let Some((controllers, own)) = parts else { return Vec::new() };
    let (mount, files) = match controllers {
        "" => (mount.to_owned(), &CGROUP_V2),
        some if some.split(',').any(|name| name == "memory") => (mount.join("memory"), &CGROUP_V1),
        _ => return Vec::new(),
    };
    let limit = |path: &Path| {
        let cgroup = mount.join(path);
        let free = files.available(&cgroup)?;
        // In different namespaces different cgroups may have the same path, but not the same inode.
        let inode = std::fs::metadata(&cgroup).ok()?.ino();
        let name = format!("cgroup /{}", path.display());
        Some(MemoryLimit { id: id(&(host, files.version, inode)), free, name })
    };
    Path::new(own).ancestors().filter_map(limit).collect()
}

/// Identifies a memory limit, identically in all processes of this program.
fn id(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish().max(1)
}

/// The files of a memory cgroup.
struct CgroupFiles {
    version: u8,
    limit: &'static str,
    usage: &'static str,
    /// Entries of `memory.stat` with the page cache, which is reclaimed under memory pressure.
    page_cache: [&'static str; 2],
}

const CGROUP_V1: CgroupFiles = CgroupFiles {
    version: 1,
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    page_cache: ["total_inactive_file ", "total_active_file "],
};
const CGROUP_V2: CgroupFiles = CgroupFiles {
    version: 2,
    limit: "memory.max",
    usage: "memory.current",
    page_cache: ["inactive_file ", "active_file "],
};

impl CgroupFiles {
    /// Bytes still available in a cgroup; `None` without a limit.
    fn available(&self, cgroup: &Path) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(cgroup.join(name)).ok();
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (limit, usage) = (number(&read(self.limit)?)?, number(&read(self.usage)?)?);
        let stat = read("memory.stat").unwrap_or_default();
        let entry = |name: &&str| stat.lines().find_map(|line| number(line.strip_prefix(name)?));
        let page_cache = self.page_cache.iter().filter_map(entry).sum();
        Some(limit.saturating_sub(usage.saturating_sub(page_cache)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A root folder with these files.
    fn root(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let name = format!("regatta-memory-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    /// Name and available bytes of each limit below a root.
    fn available(root: &Path) -> Vec<(String, u64)> {
        let limits = memory_limits_below(root, "a").unwrap().into_iter();
        limits.map(|limit| (limit.name, limit.free)).collect()
    }

    #[test]
    fn available_memory_excludes_the_page_cache() {
        let machine = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        let bare = root("bare", &[machine]);
        let node = ("this node".to_owned(), 8000 << 10);
        assert_eq!(available(&bare), std::slice::from_ref(&node));
        let two = root(
            "two",
            &[
                machine,
                ("proc/self/cgroup", "0::/job/step\n"),
                ("sys/fs/cgroup/job/step/memory.max", "max\n"),
                ("sys/fs/cgroup/job/memory.max", "5000\n"),
                ("sys/fs/cgroup/job/memory.current", "4000\n"),
                ("sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 500\nactive_file 20\n"),
            ],
        );
        assert_eq!(available(&two), [node.clone(), ("cgroup /job".to_owned(), 1520)]);
        let one = root(
            "one",
            &[
                machine,
                ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "7\n"),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3000\n"),
                ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2000\n"),
                ("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 30\n"),
            ],
        );
        assert_eq!(available(&one)[..2], [node, ("cgroup /job".to_owned(), 1030)]);
        // Identifiers agree between processes and differ between limits and hosts.
        let ids = |host| memory_limits_below(&two, host).unwrap().into_iter().map(|limit| limit.id);
        let all: std::collections::BTreeSet<u64> =
            ids("a").chain(ids("b")).chain(ids("a")).collect();
        assert_eq!(all.len(), 4);
        [bare, two, one].iter().for_each(|root| std::fs::remove_dir_all(root).unwrap());
    }
}
