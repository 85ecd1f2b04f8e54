//! Questions to the running kernel that only the binary asks: memory policy, names, ports.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use regatta_launch::started;
use regatta_model::CpuSet;
use regatta_place::check::ActualMemory;
use regatta_predict::footprint::Room;

/// The memory policy of this thread.
pub fn memory_policy() -> ActualMemory {
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
        return ActualMemory::Unknown;
    }
    let nodes: CpuSet = (0..WORDS * 64).filter(|n| mask[n / 64] & (1 << (n % 64)) != 0).collect();
    // The upper bits are flags.
    match mode & 0xff {
        libc::MPOL_PREFERRED if nodes.is_empty() => ActualMemory::Default,
        // 5 is MPOL_PREFERRED_MANY.
        libc::MPOL_PREFERRED | 5 => ActualMemory::Prefer(nodes),
        libc::MPOL_BIND => ActualMemory::Bind(nodes),
        libc::MPOL_INTERLEAVE => ActualMemory::Interleave(nodes),
        _ => ActualMemory::Default,
    }
}

/// Bytes of memory that this process can have now without hurting others: of the machine, and of
/// its control group and those above.
pub fn free_memory() -> Option<u64> {
    rooms("").into_iter().map(|room| room.free).min()
}

/// The memory that this process has to do with on its host: the machine's, and that of its control
/// group and those above, each with what can be had now without hurting others.
pub fn rooms(host: &str) -> Vec<Room> {
    rooms_below(Path::new("/"), host).unwrap_or_default()
}

fn rooms_below(root: &Path, host: &str) -> Option<Vec<Room>> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let free = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)?;
    let machine = Room { id: id(&(host, 0u8, 0u64)), free, name: "this node".to_owned() };
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let groups = root.join("sys/fs/cgroup");
    let groups = text.lines().flat_map(|line| groups_of(&groups, line, host));
    Some([machine].into_iter().chain(groups).collect())
}

/// A control group and those above it that are about memory and have a limit. A line is
/// `number:controllers:/path`, without controllers in version 2.
fn groups_of(groups: &Path, line: &str, host: &str) -> Vec<Room> {
    let parts = line.split_once(':').and_then(|(_, rest)| rest.split_once(":/"));
    let Some((controllers, own)) = parts else { return Vec::new() };
    let (groups, names, version) = match controllers {
        "" => (groups.to_owned(), VERSION_2, 2u8),
        some if some.split(',').any(|name| name == "memory") => {
            (groups.join("memory"), VERSION_1, 1)
        }
        _ => return Vec::new(),
    };
    let one = |path: &Path| {
        let group = groups.join(path);
        let free = left_in(&group, names)?;
        // Namespaces may call different groups the same; their numbers differ all the same.
        let number = std::fs::metadata(&group).ok()?.ino();
        let name = format!("control group /{}", path.display());
        Some(Room { id: id(&(host, version, number)), free, name })
    };
    Path::new(own).ancestors().filter_map(one).collect()
}

/// A number for what tells a memory from others, the same in all processes of this program.
fn id(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Where a control group tells its limit, what it uses, and what of that are copies of files, which
/// go when memory is needed.
type Names = (&'static str, &'static str, [&'static str; 2]);
const VERSION_1: Names = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ["total_inactive_file ", "total_active_file "],
);
const VERSION_2: Names = ("memory.max", "memory.current", ["inactive_file ", "active_file "]);

fn left_in(group: &Path, (limit, used, copies): Names) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (limit, used) = (number(&read(limit)?)?, number(&read(used)?)?);
    let stat = read("memory.stat").unwrap_or_default();
    let copied = copies
        .iter()
        .filter_map(|name| stat.lines().find_map(|line| number(line.strip_prefix(name)?)));
    Some(limit.saturating_sub(used.saturating_sub(copied.sum())))
}

/// What a name resolves to, IPv4 first; empty if to nothing.
pub fn resolve(name: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = match (name, 0u16).to_socket_addrs() {
        Ok(addresses) => addresses.map(|a| a.ip()).filter(|a| !a.is_loopback()).collect(),
        Err(_) => Vec::new(),
    };
    found.sort_by_key(|a| a.is_ipv6());
    found.dedup();
    found
}

/// Whether a server could listen on the port on every interface.
pub fn port_is_free(port: u16) -> bool {
    regatta_launch::port::is_free(port)
}

/// The hosts of the Flux job this process is in.
pub fn flux_hosts() -> Option<String> {
    printed("flux", &["hostlist", "local"])
}

/// What the `mpiexec` in PATH says of itself.
pub fn mpiexec_version() -> Option<String> {
    printed("mpiexec", &["--version"])
}

/// What Slurm knows of a job.
pub fn slurm_job(id: &str) -> Option<String> {
    printed("scontrol", &["show", "job", "-d", id])
}

/// A scheduler that does not answer must not hold us up for ever.
const ANSWER: Duration = Duration::from_secs(10);

fn printed(program: &str, args: &[&str]) -> Option<String> {
    started::output_of(program, args, ANSWER).map(|text| text.trim().to_owned())
}

/// This user's name, for folders that no two users should share.
pub fn user(env: &regatta_discover::Env) -> String {
    let named = ["USER", "LOGNAME"].iter().find_map(|v| env.get(v)).map(str::to_owned);
    named.unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A root with these files.
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

    /// Whose memory there is below a root, and how much.
    fn free(root: &Path) -> Vec<(String, u64)> {
        let rooms = rooms_below(root, "a").unwrap().into_iter();
        rooms.map(|room| (room.name, room.free)).collect()
    }

    #[test]
    fn limits_count_without_copies_of_files() {
        let machine = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        let bare = root("bare", &[machine]);
        let node = ("this node".to_owned(), 8000 << 10);
        assert_eq!(free(&bare), std::slice::from_ref(&node));
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
        assert_eq!(free(&two), [node.clone(), ("control group /job".to_owned(), 1520)]);
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
        assert_eq!(free(&one)[..2], [node, ("control group /job".to_owned(), 1030)]);
        // The same to all that are in it, and another one to others.
        let ids = |host| rooms_below(&two, host).unwrap().into_iter().map(|room| room.id);
        let all: std::collections::BTreeSet<u64> =
            ids("a").chain(ids("b")).chain(ids("a")).collect();
        assert_eq!(all.len(), 4);
        [bare, two, one].iter().for_each(|root| std::fs::remove_dir_all(root).unwrap());
    }
}
