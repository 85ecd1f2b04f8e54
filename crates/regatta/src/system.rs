//! Questions to the running kernel that only the binary asks: memory policy, names, ports.

use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Command, Stdio};

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
    let output =
        Command::new("flux").args(["hostlist", "local"]).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// This user's name, for folders that no two users should share.
pub fn user(env: &regatta_discover::Env) -> String {
    let named = ["USER", "LOGNAME"].iter().find_map(|v| env.get(v)).map(str::to_owned);
    named.unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()))
}
