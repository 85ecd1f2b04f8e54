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

    /// Binds the calling process, as far as the kernel permits it. Safe between fork and exec: it does not
    /// allocate.
    pub fn apply(&self) -> io::Result<()> {
        if !self.cpus.is_empty() {
            self.check(Call::SchedSetaffinity, set_affinity(&self.cpus))?;
        }
        if self.mode != libc::MPOL_DEFAULT {
            self.check(Call::SetMempolicy, set_mempolicy(self.mode, &self.nodes))?;
        }
        Ok(())
    }

    fn check(&self, call: Call, result: io::Result<()>) -> io::Result<()> {
        let ignored =
            |error: &io::Error| error.raw_os_error().is_some_and(|e| !self.fails(call, e));
        result.or_else(|error| if ignored(&error) { Ok(()) } else { Err(error) })
    }

    /// Whether an error of a call ends the launch.
    fn fails(&self, call: Call, error: i32) -> bool {
        match (call, error) {
            // Without it a rank is slower, but runs. Only strict binding was asked for by the user.
            (Call::SetMempolicy, libc::ENOSYS | libc::EPERM) => self.mode == libc::MPOL_BIND,
            (Call::SchedSetaffinity, libc::ENOSYS | libc::EPERM) => false,
            // Kernels before 5.15 support one preferred node only; local memory is as close.
            (Call::SetMempolicy, libc::EINVAL) => self.mode != PREFERRED_MANY,
            _ => true,
        }
    }
}

/// A system call that binds a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    SchedSetaffinity,
    SetMempolicy,
}

/// A note for the user if the ranks with these bindings run unbound here: the kernel, or an emulator, does not
/// have a system call, or a container forbids it.
pub fn unavailable<'a>(bindings: impl Iterator<Item = &'a Binding> + Clone) -> Option<String> {
    let of_cpus = bindings.clone().any(|binding| !binding.cpus.is_empty());
    // Without strict binding, the launch fails.
    let is_preference = |mode| mode != libc::MPOL_DEFAULT && mode != libc::MPOL_BIND;
    let of_memory = bindings.clone().any(|binding| is_preference(binding.mode));
    // Neither call changes anything: the kernel refuses an empty mask and an unknown mode.
    let cpus = of_cpus.then(|| set_affinity(&[])).and_then(Result::err);
    let memory = of_memory.then(|| set_mempolicy(libc::c_int::MAX, &[])).and_then(Result::err);
    unavailable_note(cpus.as_ref(), memory.as_ref())
}

/// The note on the errors of both calls; other errors mean that the kernel has the call.
fn unavailable_note(cpus: Option<&io::Error>, memory: Option<&io::Error>) -> Option<String> {
    let is_missing =
        |error: &&io::Error| matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM));
    let calls = [
        ("CPUs", "sched_setaffinity", cpus.filter(is_missing)),
        ("NUMA nodes", "set_mempolicy", memory.filter(is_missing)),
    ];
    let missing = calls.iter().filter_map(|(what, call, error)| Some((*what, *call, (*error)?)));
    let (what, why): (Vec<_>, Vec<_>) =
        missing.map(|(what, call, error)| (what, format!("{call}: {error}"))).unzip();
    (!what.is_empty()).then(|| {
        let (what, why) = (what.join(" and "), why.join("; "));
        format!("ranks run without binding to their {what}: the system refuses it ({why})")
    })
}

fn set_affinity(cpus: &[u64]) -> io::Result<()> {
    let bytes = std::mem::size_of_val(cpus);
    // SAFETY: `cpus` is readable for `bytes` bytes.
    match unsafe { libc::sched_setaffinity(0, bytes, cpus.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_mempolicy(mode: libc::c_int, nodes: &[u64]) -> io::Result<()> {
    // The kernel reads one bit less than it is told.
    let bits = nodes.len() * 64 + 1;
    // SAFETY: the kernel reads at most `bits - 1` bits, which `nodes` holds.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(memory: &MemoryPolicy) -> Binding {
        Binding::new(&CpuSet::from_iter([0]), memory)
    }

    #[test]
    fn only_strict_memory_binding_needs_its_system_call() {
        let prefer = binding(&MemoryPolicy::Prefer(vec![0]));
        let strict = binding(&MemoryPolicy::Bind(vec![0]));
        for error in [libc::ENOSYS, libc::EPERM] {
            assert!(!prefer.fails(Call::SchedSetaffinity, error));
            assert!(!prefer.fails(Call::SetMempolicy, error));
            assert!(!strict.fails(Call::SchedSetaffinity, error));
            assert!(strict.fails(Call::SetMempolicy, error));
        }
    }

    #[test]
    fn cpus_and_nodes_that_do_not_exist_are_an_error() {
        let one = binding(&MemoryPolicy::Prefer(vec![0]));
        let many = binding(&MemoryPolicy::Prefer(vec![0, 1]));
        assert!(one.fails(Call::SchedSetaffinity, libc::EINVAL));
        assert!(one.fails(Call::SetMempolicy, libc::EINVAL));
        assert!(!many.fails(Call::SetMempolicy, libc::EINVAL));
    }

    #[test]
    fn the_note_names_the_missing_calls_once() {
        let error = |code| io::Error::from_raw_os_error(code);
        let (missing, forbidden) = (error(libc::ENOSYS), error(libc::EPERM));
        let refused = error(libc::EINVAL);
        assert_eq!(unavailable_note(Some(&refused), Some(&refused)), None);
        assert_eq!(unavailable_note(None, None), None);
        let note = unavailable_note(Some(&refused), Some(&missing)).unwrap();
        assert!(
            note.contains("NUMA nodes") && note.contains("set_mempolicy: Function not"),
            "{note}"
        );
        assert!(!note.contains("sched_setaffinity"), "{note}");
        let note = unavailable_note(Some(&forbidden), Some(&forbidden)).unwrap();
        assert!(note.contains("CPUs and NUMA nodes"), "{note}");
        assert!(note.contains("sched_setaffinity: Operation not permitted"), "{note}");
    }

    #[test]
    fn probing_leaves_the_affinity_unchanged() {
        let affinity = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned()
        };
        let before = affinity();
        let prefer = binding(&MemoryPolicy::Prefer(vec![0]));
        unavailable([&prefer].into_iter());
        assert_eq!(affinity(), before);
        let none = Binding::new(&CpuSet::default(), &MemoryPolicy::Default);
        assert_eq!(unavailable([&none].into_iter()), None);
    }
}
