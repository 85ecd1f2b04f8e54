//! The library that lets a host claim more CPUs than the machine has; see `affinity.c`.

use crate::base::Base;
use crate::error::TestbedError;
use crate::run::succeed;
use std::path::PathBuf;
use std::process::Command;

/// Tells the library how many CPUs to claim.
pub(crate) const CPUS: &str = "REGATTA_TESTBED_CPUS";

/// Compiles the library into a cluster's folder, which all hosts see.
pub(crate) fn build(base: &Base) -> Result<PathBuf, TestbedError> {
    let library = base.file("libaffinity.so");
    base.write("affinity.c", include_str!("affinity.c"))?;
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
    succeed(compile.arg(&library).arg(base.file("affinity.c")))?;
    Ok(library)
}
