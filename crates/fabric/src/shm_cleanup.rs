//! Workarounds for libfabric's shm provider: removal of the segments of killed ranks, and detection of
//! ranks in the same process, which shm cannot connect.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The prefix of shm addresses, followed by the segment name, which starts with the process ID.
const SHM: &str = "fi_shm://";

/// Addresses of this process whose segments are removed at its exit.
static OWN: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Has the segment of an address removed when the process exits: libfabric leaves those of endpoints behind
/// that are not closed. Peers that have mapped it are not affected.
pub fn remove_at_exit(address: &[u8]) {
    if parts(address).is_some() {
        OWN.lock().unwrap_or_else(PoisonError::into_inner).push(address.to_vec());
    }
}

/// Removes the segments of this process. A forked child inherits the list, and has none.
pub(crate) fn remove_own_segments() {
    let addresses = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let segments = addresses.iter().filter_map(|address| parts(address));
    for (_, name) in segments.filter(|(process, _)| *process == std::process::id()) {
        // The provider has removed it if the endpoint was closed.
        let _ = std::fs::remove_file(format!("/dev/shm/{name}"));
    }
}

/// Removes the segments of dead processes.
pub fn remove_stale_segments(addresses: &[Vec<u8>]) {
    for address in addresses.iter().filter(|address| !is_running(address)) {
        let Some((_, name)) = parts(address) else { continue };
        // Another rank may have removed it already.
        let _ = std::fs::remove_file(format!("/dev/shm/{name}"));
    }
}

/// Whether the process of an address runs on this machine, in this PID namespace.
pub fn is_running(address: &[u8]) -> bool {
    let Some((process, _)) = parts(address) else { return false };
    // The command line of a zombie is empty.
    let command = std::fs::read(format!("/proc/{process}/cmdline"));
    command.is_ok_and(|command| !command.is_empty())
}

/// The first rank in the same process as a lower one. shm endpoints of one process access each
/// other's mappings even after they are unmapped.
pub fn find_shared_process(addresses: &[Vec<u8>]) -> Option<usize> {
    let process = |address: &Vec<u8>| Some(parts(address)?.0);
    let mut seen = HashSet::new();
    addresses.iter().position(|address| process(address).is_some_and(|id| !seen.insert(id)))
}

/// The file of the segment of an address.
pub(crate) fn segment_path(address: &[u8]) -> Option<String> {
    parts(address).map(|(_, name)| format!("/dev/shm/{name}"))
}

/// The process ID and segment name. Addresses are untrusted: the name must not contain a path.
fn parts(address: &[u8]) -> Option<(u32, &str)> {
    let address = std::str::from_utf8(address).ok()?;
    let name = address.trim_end_matches('\0').strip_prefix(SHM)?;
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    let plain = name.bytes().all(|byte| byte.is_ascii_digit() || byte == b':');
    let process = name[..digits].parse().ok().filter(|_| plain)?;
    Some((process, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_paths_are_rejected() {
        assert_eq!(parts(b"fi_shm://123:0:4\0\0"), Some((123, "123:0:4")));
        for other in ["fi_shm://123/../x", "fi_shm://", "fi_shm://:4", "127.0.0.1:80"] {
            assert_eq!(parts(other.as_bytes()), None);
        }
    }

    #[test]
    fn ranks_in_the_same_process_are_found() {
        let all = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        let shared = |texts: &[&str]| find_shared_process(&all(texts) as &Vec<Vec<u8>>);
        assert_eq!(shared(&["fi_shm://7:0:0", "fi_shm://8:0:0"]), None);
        assert_eq!(shared(&["fi_shm://7:0:0", "fi_shm://8:0:0", "fi_shm://7:0:1"]), Some(2));
        assert_eq!(shared(&["other", "other"]), None);
    }

    #[test]
    fn only_segments_of_dead_processes_are_removed() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let (living, dead) = (std::process::id(), ended.id());
        let names = [living, dead].map(|process| format!("{process}:0:987654"));
        names.iter().for_each(|name| std::fs::write(format!("/dev/shm/{name}"), "").unwrap());
        remove_stale_segments(&names.clone().map(|name| format!("{SHM}{name}").into_bytes()));
        let existed = names.map(|name| std::fs::remove_file(format!("/dev/shm/{name}")).is_ok());
        assert_eq!(existed, [true, false]);
    }
}
