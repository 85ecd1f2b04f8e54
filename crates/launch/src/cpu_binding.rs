//! CPU affinity and memory policy of a rank. Prepared before fork and applied after it, where only
//! async-signal-safe calls are allowed.

use std::io;

use regatta_model::{CpuSet, MemoryPolicy};
use serde::{Deserialize, Serialize};

/// CPU affinity mask and memory policy, in the kernel's representation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    cpus: Vec<u64>,
    mode: libc::c_int,
    nodes: Vec<u64>,
}

/// MPOL_PREFERRED_MANY, since Linux 5.15.
const PREFERRED_MANY: libc::c_int = 5;

impl Binding {
    /// Prepares a binding. An empty CPU set leaves the affinity unchanged.
    pub fn new(cpus: &CpuSet, memory: &MemoryPolicy) -> Self {
        let (mode, nodes) = match memory {
            MemoryPolicy::Default => (libc::MPOL_DEFAULT, &[][..]),
            MemoryPolicy::Bind(nodes) => (libc::MPOL_BIND, &nodes[..]),
            MemoryPolicy::Prefer(nodes) if nodes.len() > 1 => (PREFERRED_MANY, &nodes[..]),
            MemoryPolicy::Prefer(nodes) => (libc::MPOL_PREFERRED, &nodes[..]),
        };
        let nodes = bit_mask(nodes.iter().map(|&n| n as usize));
        Self { cpus: bit_mask(cpus.iter()), mode, nodes }
    }

    /// Binds the calling process. Safe between fork and exec: it does not allocate.
    pub fn apply(&self) -> io::Result<()> {
        if !self.cpus.is_empty() {
            let bytes = std::mem::size_of_val(self.cpus.as_slice());
            // SAFETY: `cpus` is readable for `bytes` bytes.
            let result = unsafe { libc::sched_setaffinity(0, bytes, self.cpus.as_ptr().cast()) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if self.mode == libc::MPOL_DEFAULT {
            return Ok(());
        }
        let (mode, nodes, bits) = (self.mode, self.nodes.as_ptr(), self.nodes.len() * 64);
        // SAFETY: the kernel reads at most `bits` bits, which `nodes` holds.
        if unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes, bits + 1) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Kernels before 5.15 support one preferred node only; local memory is as close.
            Some(libc::EINVAL) if mode == PREFERRED_MANY => Ok(()),
            // A container may forbid the call. A preference is not worth failing the job.
            Some(libc::EPERM) if mode != libc::MPOL_BIND => Ok(()),
            _ => Err(error),
        }
    }
}

fn bit_mask(bits: impl Iterator<Item = usize>) -> Vec<u64> {
    let mut words: Vec<u64> = Vec::new();
    for bit in bits {
        if words.len() <= bit / 64 {
            words.resize(bit / 64 + 1, 0);
        }
        words[bit / 64] |= 1 << (bit % 64);
    }
    words
}
