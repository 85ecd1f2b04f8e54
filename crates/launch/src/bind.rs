//! Binds the calling process: CPUs, memory policy, process group. Prepared before a fork, applied
//! after it, where only system calls are allowed.

use std::io;

use regatta_model::{CpuSet, MemoryPolicy};
use serde::{Deserialize, Serialize};

use crate::signals;

/// What a rank is bound to, in the kernel's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    cpus: Vec<u64>,
    mode: libc::c_int,
    nodes: Vec<u64>,
}

/// MPOL_PREFERRED_MANY, since Linux 5.15.
const PREFERRED_MANY: libc::c_int = 5;

impl Binding {
    /// Prepares a binding. No CPUs: the affinity stays as it is.
    pub fn new(cpus: &CpuSet, memory: &MemoryPolicy) -> Self {
        let (mode, nodes) = match memory {
            MemoryPolicy::System => (libc::MPOL_DEFAULT, &[][..]),
            MemoryPolicy::Bind(nodes) => (libc::MPOL_BIND, &nodes[..]),
            MemoryPolicy::Prefer(nodes) if nodes.len() > 1 => (PREFERRED_MANY, &nodes[..]),
            MemoryPolicy::Prefer(nodes) => (libc::MPOL_PREFERRED, &nodes[..]),
        };
        Self { cpus: words(cpus.iter()), mode, nodes: words(nodes.iter().map(|&n| n as usize)) }
    }

    /// Binds the calling process. Safe between fork and exec: it allocates nothing.
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
        match self.set_memory_policy(self.mode) {
            // An older kernel knows one preferred node only: local memory is as near.
            Err(error)
                if self.mode == PREFERRED_MANY && error.raw_os_error() == Some(libc::EINVAL) =>
            {
                Ok(())
            }
            // A container may forbid the call. A preference is not worth ending the job.
            Err(error)
                if self.mode != libc::MPOL_BIND && error.raw_os_error() == Some(libc::EPERM) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn set_memory_policy(&self, mode: libc::c_int) -> io::Result<()> {
        // SAFETY: the kernel reads at most `bits` bits of `nodes`, which it has.
        let result = unsafe {
            let bits = self.nodes.len() * 64;
            libc::syscall(libc::SYS_set_mempolicy, mode, self.nodes.as_ptr(), bits + 1)
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn words(bits: impl Iterator<Item = usize>) -> Vec<u64> {
    let mut words: Vec<u64> = Vec::new();
    for bit in bits {
        if words.len() <= bit / 64 {
            words.resize(bit / 64 + 1, 0);
        }
        words[bit / 64] |= 1 << (bit % 64);
    }
    words
}

/// Makes the calling process the head of a session of its own, to be signalled with all it starts
/// and without a terminal it could wait for, and has it killed if its parent dies. Safe between
/// fork and exec.
pub fn lead_session(parent: u32) -> io::Result<()> {
    signals::may_stop();
    // SAFETY: plain system calls on the calling process.
    unsafe {
        if libc::setsid() < 0 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the request.
        if libc::getppid() as u32 != parent {
            libc::_exit(127);
        }
    }
    Ok(())
}
