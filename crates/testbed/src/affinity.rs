//! The preloaded library by which a host claims more CPUs and NUMA nodes than the machine has; see
//! `affinity.c`.

use crate::cluster_dir::ClusterDir;
use crate::command::succeed;
use crate::error::{TestbedError, io};
use std::path::Path;
use std::process::Command;

/// Number of CPUs that the library claims.
const CPUS: &str = "REGATTA_TESTBED_CPUS";
/// Number of NUMA nodes that the library claims.
const NUMA: &str = "REGATTA_TESTBED_NUMA";
/// A NUMA node in a hwloc XML file.
const NUMA_NODE: &str = "type=\"NUMANode\"";

/// Compiles the library into the cluster's directory and returns the environment variables that
/// preload it.
pub(crate) fn build(
    dir: &ClusterDir,
    cpus: u32,
    topology: Option<&Path>,
) -> Result<Vec<String>, TestbedError> {
    let library = dir.file("libaffinity.so");
    dir.write("affinity.c", include_str!("affinity.c"))?;
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    succeed(compile.arg(&library).arg(dir.file("affinity.c")))?;
    let xml = topology.map(|xml| std::fs::read_to_string(xml).map_err(io("read", xml)));
    let numa = xml.transpose()?.map_or(1, |text| text.matches(NUMA_NODE).count().max(1));
    Ok(vec![
        format!("LD_PRELOAD={}", library.display()),
        format!("{CPUS}={cpus}"),
        format!("{NUMA}={numa}"),
    ])
}
