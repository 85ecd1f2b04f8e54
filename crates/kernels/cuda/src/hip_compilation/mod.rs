//! Every source compiles for the supported AMD architectures, by clang, without ROCm: for one of them in turn,
//! or for all in `cargo xtask accept conformance`. Skipped with a message without a clang that knows them.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::{env, fs, process};

use regatta_comm::gpu_runtime::Vendor;
use regatta_testbed::sample_cases;

use crate::Kernel;
use crate::device::AMD_ARCHITECTURES;
use crate::module_cache::PRELUDE;
use crate::sources::representative_kernels;

const DECLARATIONS: &str = include_str!("hiprtc_declarations.h");

/// Kernels must not keep more registers than these bytes in memory, per lane.
const MAX_SPILLED_BYTES: u32 = 64;

/// A clang that knows all architectures: gfx942 is known from version 17 on.
fn clang() -> Option<OsString> {
    let named = env::var_os("REGATTA_CLANG").into_iter();
    let versions = (17..=24).rev().map(|version| format!("clang-{version}").into());
    let mut candidates = named.chain(["clang".into()]).chain(versions);
    candidates.find(|clang| {
        let knows = |arch: &&str| {
            let mut command = Command::new(clang);
            command.args(["--target=amdgcn-amd-amdhsa", "-nogpulib", "-x", "c", "/dev/null"]);
            let output =
                command.arg(format!("-mcpu={arch}")).args(["-S", "-o", "/dev/null"]).output();
            output.is_ok_and(|output| output.status.success())
        };
        AMD_ARCHITECTURES.iter().all(knows)
    })
}

/// Compiles a source to assembly, whose comments have the resources of the kernels.
fn assembly(clang: &OsString, kernel: &Kernel, arch: &str, file: &Path) -> Result<String, String> {
    let source = format!("{DECLARATIONS}\n{PRELUDE}\n{}", kernel.source.text);
    fs::write(file, source).map_err(|error| error.to_string())?;
    let mut command = Command::new(clang);
    command.args(["-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-fdeclspec"]);
    // As hipRTC: the macro, the optimisation and the options of `Compiler::options`.
    command.args(["-D__HIPCC_RTC__", "-O3", "-std=c++17", "-munsafe-fp-atomics", "-S", "-o", "-"]);
    command.arg(format!("--offload-arch={arch}"));
    command.args(kernel.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    let output = command.arg(file).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The largest value of a resource, such as `ScratchSize`, of the kernels of an assembly.
fn largest(assembly: &str, resource: &str) -> u32 {
    let values = assembly.lines().filter_map(|line| {
        let value = line.strip_prefix("; ")?.strip_prefix(resource)?.strip_prefix(": ")?;
        value.trim().parse().ok()
    });
    values.max().unwrap_or(0)
}

#[test]
fn all_sources_compile_for_amd_gpus() {
    let Some(clang) = clang() else {
        return eprintln!(
            "skipped: no clang for gfx90a and gfx942 (version 17 or newer; REGATTA_CLANG)"
        );
    };
    let file = env::temp_dir().join(format!("regatta-hip-{}.hip", process::id()));
    let mut failures = String::new();
    let kernels = representative_kernels(Vendor::Amd);
    let architectures =
        |first: usize| AMD_ARCHITECTURES.iter().cycle().skip(first).take(AMD_ARCHITECTURES.len());
    let cases = kernels
        .iter()
        .enumerate()
        .flat_map(|(at, kernel)| architectures(at).map(move |arch| (kernel, arch)));
    for (kernel, arch) in sample_cases(cases, AMD_ARCHITECTURES.len()) {
        let name = kernel.source.name;
        let failure = match assembly(&clang, kernel, arch, &file) {
            Err(error) => error,
            Ok(text) if largest(&text, "ScratchSize") > MAX_SPILLED_BYTES => {
                format!("{} bytes of registers are spilled", largest(&text, "ScratchSize"))
            }
            Ok(text) if name.contains("mfma") && !text.contains("v_mfma_f32_16x16x16") => {
                "no MFMA instruction".to_owned()
            }
            Ok(_) => continue,
        };
        let _ = writeln!(failures, "{name} for {arch}, {:?}: {failure}", kernel.defines);
    }
    let _ = fs::remove_file(&file);
    assert!(failures.is_empty(), "{failures}");
}
