//! Advice on a library: what to set, and what a job may have that this process does not.

use super::kind::PluginKind;
use super::report::{LibraryFacts, LoadResult};

/// Libraries that a program has loaded before NCCL opens plug-ins: the loader then does not search.
const OF_THE_PROGRAM: [&str; 8] = [
    "libcudart.so",
    "libcuda.so",
    "libcublas",
    "libnccl.so",
    "librccl.so",
    "libamdhip64.so",
    "libhsa-runtime64.so",
    "libtorch",
];

/// Advice for a library.
pub fn notes(facts: &LibraryFacts) -> Vec<String> {
    [missing(facts), of_the_program(facts), variables(facts), in_net_library(facts)]
        .into_iter()
        .flatten()
        .collect()
}

fn is_of_the_program(name: &str) -> bool {
    OF_THE_PROGRAM.iter().any(|prefix| name.starts_with(prefix))
}

fn missing(facts: &LibraryFacts) -> Option<String> {
    facts.missing().any(|missing| !is_of_the_program(&missing.name)).then(|| {
        "put the directories of the missing libraries into LD_LIBRARY_PATH, on all nodes; in a container, \
         bind them from the host"
            .to_owned()
    })
}

fn of_the_program(facts: &LibraryFacts) -> Option<String> {
    let names: Vec<&str> = facts.missing().map(|missing| missing.name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| is_of_the_program(name)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "a program that has loaded {} before NCCL, as PyTorch does, does not miss it: check in its \
             environment, with the directories of its libraries in LD_LIBRARY_PATH",
            names.join(", ")
        )
    })
}

/// The variables that select the library.
fn variables(facts: &LibraryFacts) -> Option<String> {
    let variable = |kind: PluginKind| format!("{}={}", kind.variable(), facts.path);
    let variables: Vec<String> = facts.interfaces.iter().map(|i| variable(i.kind)).collect();
    let is_selectable = facts.load == LoadResult::Loaded && !variables.is_empty();
    is_selectable.then(|| format!("select it by {}", variables.join(" ")))
}

fn in_net_library(facts: &LibraryFacts) -> Option<String> {
    let exports = |kind: PluginKind| facts.interfaces.iter().any(|i| i.kind == kind);
    let text = match (exports(PluginKind::Tuner), exports(PluginKind::Profiler)) {
        _ if !exports(PluginKind::Net) => return None,
        (false, false) => return None,
        (true, false) => "the tuner (NCCL 2.21 and later)",
        (false, true) => "the profiler (NCCL 2.28 and later)",
        (true, true) => "the tuner (NCCL 2.21 and later) and the profiler (2.28 and later)",
    };
    Some(format!(
        "as the net plug-in alone it is also used for {text}, unless a library of that kind is found or \
         disabled by `none`"
    ))
}
