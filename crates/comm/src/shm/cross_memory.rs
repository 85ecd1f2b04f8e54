//! Reads the callers' buffers in other processes (cross memory attach, `process_vm_readv`), which
//! saves the copy through a slot.
//!
//! Only reads: a rank that has failed owns its buffers again, and a write would corrupt them, while
//! what was read from them is discarded.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Error, ErrorKind};

/// Whether a rank wants the ranks to read each other's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrossMemory {
    /// Also if it cannot.
    Never = 1,
    IfFaster,
    Always,
}

/// Reads memory of a process at an address.
pub fn read(process: i32, address: u64, into: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let from = (address as usize).wrapping_add(done) as *mut _;
        let remote = libc::iovec { iov_base: from, iov_len: rest.len() };
        // SAFETY: `local` is exclusively borrowed; the kernel checks the remote address.
        let bytes = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
        match bytes {
            1.. => done += bytes as usize,
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            _ => return Err(Error::last_os_error()),
        }
    }
    Ok(())
}

/// Whether other processes can read a buffer; they cannot read some device mappings.
pub fn is_readable(buffer: *const u8, bytes: usize) -> bool {
    let byte = |at: usize| buffer.wrapping_add(at).addr() as u64;
    let reads = |at| read(own_process(), at, &mut [0]).is_ok();
    bytes > 0 && reads(byte(0)) && reads(byte(bytes - 1))
}

/// This process.
pub fn own_process() -> i32 {
    std::process::id().cast_signed()
}

/// Where a rank finds the probe of another.
#[derive(Debug, Clone, Copy)]
pub struct ProbeLocation {
    pub process: i32,
    pub address: u64,
    pub value: u64,
}

impl ProbeLocation {
    /// Whether this process can read the memory of the other. It may not be permitted to, and in
    /// another PID namespace the PID means a different process.
    pub fn is_reachable(&self) -> bool {
        let mut bytes = [0; 8];
        let found = read(self.process, self.address, &mut bytes).is_ok();
        found && u64::from_ne_bytes(bytes) == self.value
    }
}

/// A random word in private memory that the other ranks try to read.
#[derive(Debug)]
pub struct Probe(Box<u64>);

impl Probe {
    pub fn new() -> Self {
        Self(Box::new(RandomState::new().build_hasher().finish()))
    }

    pub fn location(&self) -> ProbeLocation {
        let address = std::ptr::from_ref(&*self.0).addr() as u64;
        ProbeLocation { process: own_process(), address, value: *self.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_found_at_its_location_only() {
        let probe = Probe::new();
        let location = probe.location();
        assert!(location.is_reachable());
        assert!(!ProbeLocation { value: !location.value, ..location }.is_reachable());
        assert!(!ProbeLocation { address: 8, ..location }.is_reachable());
        assert!(!ProbeLocation { process: i32::MAX, ..location }.is_reachable());
    }

    #[test]
    fn unmapped_memory_is_not_readable() {
        let buffer = [7u8; 100];
        assert!(is_readable(buffer.as_ptr(), buffer.len()));
        assert!(!is_readable(std::ptr::without_provenance(8), 100));
        assert!(!is_readable(buffer.as_ptr(), 0) && !is_readable(buffer.as_ptr(), 1 << 60));
        let mut copy = [0; 100];
        let address = buffer.as_ptr().addr() as u64;
        read(own_process(), address, &mut copy).unwrap();
        assert_eq!(copy, buffer);
    }
}
