//! What is particular about libfabric's shm: a rank that is killed leaves memory behind, which the
//! others remove; and ranks of one process it does not connect.

use std::collections::HashSet;

/// What addresses of shm begin with; what follows is the name of the memory, and begins with the
/// number of the process.
const SHM: &str = "fi_shm://";

/// Removes the memory of processes that are no more.
pub fn after_the_dead(addresses: &[Vec<u8>]) {
    for (process, name) in addresses.iter().filter_map(|address| parts(address)) {
        // A process that has ended has none, whether or not its parent has looked.
        let command = std::fs::read(format!("/proc/{process}/cmdline"));
        if command.is_ok_and(|command| !command.is_empty()) {
            continue;
        }
        // Another rank may have been here before.
        let _ = std::fs::remove_file(format!("/dev/shm/{name}"));
    }
}

/// Which rank shares its process with one before it, which shm cannot bear: endpoints of one process
/// use each other's memory where it is mapped, also when it is not any more.
pub fn shares_a_process(addresses: &[Vec<u8>]) -> Option<usize> {
    let process = |address: &Vec<u8>| Some(parts(address)?.0);
    let mut seen = HashSet::new();
    addresses.iter().position(|address| process(address).is_some_and(|of| !seen.insert(of)))
}

/// The number of the process and the name of its memory. Names are foreign: no path may be in them.
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
    fn names_are_taken_from_addresses_and_no_paths() {
        assert_eq!(parts(b"fi_shm://123:0:4\0\0"), Some((123, "123:0:4")));
        for other in ["fi_shm://123/../x", "fi_shm://", "fi_shm://:4", "127.0.0.1:80"] {
            assert_eq!(parts(other.as_bytes()), None);
        }
    }

    #[test]
    fn ranks_of_one_process_are_found() {
        let all = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        let shared = |texts: &[&str]| shares_a_process(&all(texts) as &Vec<Vec<u8>>);
        assert_eq!(shared(&["fi_shm://7:0:0", "fi_shm://8:0:0"]), None);
        assert_eq!(shared(&["fi_shm://7:0:0", "fi_shm://8:0:0", "fi_shm://7:0:1"]), Some(2));
        assert_eq!(shared(&["elsewhere", "elsewhere"]), None);
    }

    #[test]
    fn only_memory_of_the_dead_is_removed() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let (living, dead) = (std::process::id(), ended.id());
        let names = [living, dead].map(|process| format!("{process}:0:987654"));
        names.iter().for_each(|name| std::fs::write(format!("/dev/shm/{name}"), "").unwrap());
        after_the_dead(&names.clone().map(|name| format!("{SHM}{name}").into_bytes()));
        let there = names.map(|name| std::fs::remove_file(format!("/dev/shm/{name}")).is_ok());
        assert_eq!(there, [true, false]);
    }
}
