//! The library that lets a host claim more CPUs and NUMA nodes than the machine has; see
//! `affinity.c`.

use crate::base::Base;
use crate::error::{TestbedError, io};
use crate::run::succeed;
use std::path::Path;
use std::process::Command;

/// Tells the library how many CPUs to claim.
const CPUS: &str = "REGATTA_TESTBED_CPUS";
/// Tells the library how many NUMA nodes to claim.
const NUMA: &str = "REGATTA_TESTBED_NUMA";
/// How a hwloc file spells a NUMA node.
const NUMA_NODE: &str = "type=\"NUMANode\"";

/// Compiles the library into a cluster's folder, which all hosts see, and gives the variables that
/// make a program use it.
pub(crate) fn build(
    base: &Base,
    cpus: u32,
    topology: Option<&Path>,
) -> Result<Vec<String>, TestbedError> {
    let library = base.file("libaffinity.so");
    base.write("affinity.c", include_str!("affinity.c"))?;
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    succeed(compile.arg(&library).arg(base.file("affinity.c")))?;
    let numa = match topology {
        Some(xml) => {
            let text = std::fs::read_to_string(xml).map_err(io("read", xml))?;
            text.matches(NUMA_NODE).count().max(1)
        }
        None => 1,
    };
    Ok(vec![
        format!("LD_PRELOAD={}", library.display()),
        format!("{CPUS}={cpus}"),
        format!("{NUMA}={numa}"),
    ])
}
