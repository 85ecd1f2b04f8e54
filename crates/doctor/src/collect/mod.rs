//! Collects the facts of the node that this process runs on.
//!
//! System files are read through a [`Sysroot`]. System calls, the write tests and NVML are used only
//! if it is live. Every section has a time limit, because a dead file system or driver blocks forever.

mod collective_library;
mod device_files;
mod file_systems;
mod leftovers;
#[cfg(test)]
#[path = "../../../discover/src/loader/elf/testing.rs"]
mod libraries;
mod net_plugin;
mod nics;
mod os;
mod peer_to_peer;
mod plugin_library;
mod processes;

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use regatta_discover::gpu_health::gpu_health;
use regatta_discover::{Env, Sysroot};
use regatta_model::Machine;

use crate::facts::{DirectoryUse, NodeFacts};

pub use collective_library::{library_version, release_of};
pub use leftovers::JobIdentity;
pub use nics::{NicCounters, add_new_errors, nic_counters};
pub use plugin_library::{
    TableNames, add_loaded, load_library, read_plugin, table_names, table_symbols,
};

/// What to collect.
#[derive(Debug, Clone)]
pub struct CollectOptions {
    /// The directories whose file systems are tested.
    pub directories: Vec<(DirectoryUse, PathBuf)>,
    /// Bytes of the write test.
    pub write_bytes: u64,
    /// Time limit of each section and each directory.
    pub limit: Duration,
    /// The job, whose own processes are not leftovers.
    pub job: JobIdentity,
}

/// What all sections read.
struct Context {
    root: Sysroot,
    env: Env,
    machine: Machine,
    options: CollectOptions,
}

/// Collects the facts of this node, without measured rates and peers. Always returns: a section that
/// exceeds the time limit is a note, a file system that does not answer has an error.
pub fn collect(root: &Sysroot, env: &Env, machine: Machine, options: &CollectOptions) -> NodeFacts {
    let (root, env, options) = (root.clone(), env.clone(), options.clone());
    let mut facts = NodeFacts { host: machine.host.clone(), ..NodeFacts::default() };
    facts.notes.clone_from(&machine.notes);
    let mut sections =
        Sections { context: Arc::new(Context { root, env, machine, options }), notes: Vec::new() };
    // First: the other sections use CPU time.
    facts.os = sections.run("operating system", |c| os::collect(&c.root, &c.machine));
    let (gpus, notes) = sections.run("GPUs", |c| gpu_health(&c.root, &c.machine.gpus));
    facts.gpus = gpus;
    facts.notes.extend(notes);
    facts.peer_to_peer =
        sections.run("GPU access", |c| peer_to_peer::collect(&c.root, &c.env, &c.machine));
    facts.nics = sections.run("NICs", |c| nics::collect(&c.root, &c.machine));
    facts.device_files =
        sections.run("device files", |c| device_files::collect(&c.root, &c.machine));
    facts.net_plugin =
        sections.run("network plug-in", |c| net_plugin::collect(&c.root, &c.machine));
    facts.leftovers = sections.run("processes", |c| leftovers::collect(&c.root, &c.options.job));
    let context = Arc::clone(&sections.context);
    if context.root.is_live() {
        facts.file_systems = file_systems::collect(&context.root, &context.options);
    }
    facts.notes.extend(sections.notes);
    facts.machine = Arc::try_unwrap(context).map_or_else(|c| c.machine.clone(), |c| c.machine);
    facts
}

struct Sections {
    context: Arc<Context>,
    notes: Vec<String>,
}

impl Sections {
    /// The facts of a section, or none and a note if it exceeds the time limit.
    fn run<T: Default + Send + 'static>(
        &mut self,
        name: &str,
        section: impl FnOnce(&Context) -> T + Send + 'static,
    ) -> T {
        let context = Arc::clone(&self.context);
        let limit = context.options.limit;
        let facts = with_limit(limit, move || section(&context));
        facts.unwrap_or_else(|| {
            self.notes.push(format!("{name}: timed out after {} s", limit.as_secs_f64()));
            T::default()
        })
    }
}

/// The result of `work`, or `None` after the time limit. The thread then stays blocked: a system
/// call on a dead file system cannot be interrupted.
fn with_limit<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let _ = sender.send(work());
    };
    thread::Builder::new().name("collect".to_owned()).spawn(run).ok()?;
    receiver.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempTree;

    fn options(limit: Duration) -> CollectOptions {
        let job = JobIdentity { pid: 1, uid: 0, scheduler_job: None };
        CollectOptions { directories: vec![], write_bytes: 1 << 20, limit, job }
    }

    #[test]
    fn an_empty_tree_has_no_facts() {
        let tree = TempTree::new();
        let machine = Machine { host: "n1".to_owned(), ..Machine::default() };
        let options = options(Duration::from_secs(600));
        let facts = collect(&tree.root(), &Env::default(), machine.clone(), &options);
        assert_eq!(facts, NodeFacts { host: "n1".to_owned(), machine, ..NodeFacts::default() });
    }

    #[test]
    fn a_blocked_section_is_a_note() {
        let tree = TempTree::new();
        let (root, env, machine) = (tree.root(), Env::default(), Machine::default());
        let options = options(Duration::from_millis(10));
        let context = Arc::new(Context { root, env, machine, options });
        let mut sections = Sections { context, notes: vec![] };
        let (blocker, blocked) = mpsc::channel::<()>();
        let value: u32 = sections.run("driver", move |_| {
            let _ = blocked.recv();
            1
        });
        assert_eq!((value, sections.notes), (0, vec!["driver: timed out after 0.01 s".to_owned()]));
        drop(blocker);
    }

    #[test]
    fn this_machine_is_collected() {
        let tree = TempTree::new();
        let machine = regatta_discover::discover(&Sysroot::live(), &Env::default());
        let directories = vec![(DirectoryUse::Temporary, tree.base.clone())];
        let options = CollectOptions {
            directories,
            job: JobIdentity::of_process(&Env::default()),
            ..options(Duration::from_secs(600))
        };
        let facts = collect(&Sysroot::live(), &Env::default(), machine, &options);
        assert_eq!(facts.file_systems.len(), 1);
        assert!(facts.file_systems[0].free_bytes.is_some(), "{:?}", facts.file_systems);
        assert!(facts.os.memory_total.is_some() && facts.os.open_files.is_some());
    }
}
