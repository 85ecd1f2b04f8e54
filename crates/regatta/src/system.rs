//! Questions to the running kernel that only the binary asks: memory policy, names, ports.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use regatta_launch::started;
use regatta_model::CpuSet;
use regatta_place::check::ActualMemory;

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
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let above = Path::new(own).ancestors().map(|group| Path::new("/sys/fs/cgroup").join(group));
    Some(above.filter_map(|group| left_in(&group)).fold(machine, u64::min))
}

/// What a control group may still take, if it has a limit.
fn left_in(group: &Path) -> Option<u64> {
    let number = |name: &str| {
        let text = std::fs::read_to_string(group.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
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
