//! Versions of the communication libraries a job here would load.
//!
//! On the live machine a library is opened the way NCCL's user would, and asked; in a recorded
//! tree only its file name can tell.

use std::path::PathBuf;

use regatta_model::Software;

use crate::env::Env;
use crate::root::Root;

/// Reads what can be found. Drivers are filled in by whoever scans the GPUs.
pub(crate) fn software(root: &Root, env: &Env) -> Software {
    let folders = folders(root, env);
    Software {
        rocm: rocm(root, env),
        nccl: library(root, &folders, "libnccl.so", 2, nccl_version),
        rccl: library(root, &folders, "librccl.so", 1, nccl_version),
        libfabric: library(root, &folders, "libfabric.so", 1, libfabric_version),
        net_plugin: net_plugin(root, env, &folders),
        ..Software::default()
    }
}

/// Where a job would look: the library path, then the Python environment, since PyTorch brings its
/// own NCCL or RCCL and loads that before the system's, then ROCm and the system.
fn folders(root: &Root, env: &Env) -> Vec<String> {
    let mut folders: Vec<String> =
        env.get("LD_LIBRARY_PATH").unwrap_or_default().split(':').map(str::to_owned).collect();
    for base in python_environments(root, env) {
        folders.push(format!("{base}/lib"));
        for minor in 8..=20 {
            let site = format!("{base}/lib/python3.{minor}/site-packages");
            folders.push(format!("{site}/nvidia/nccl/lib"));
            folders.push(format!("{site}/torch/lib"));
        }
    }
    folders.extend(env.get("ROCM_PATH").map(|p| format!("{p}/lib")));
    folders.push("/opt/rocm/lib".to_owned());
    let system = [
        "/opt/cray/libfabric/default/lib64",
        "/opt/amazon/efa/lib",
        "/usr/local/lib",
        "/usr/lib64",
    ];
    folders.extend(system.map(str::to_owned));
    folders.extend(
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"].map(str::to_owned),
    );
    folders.retain(|f| f.starts_with('/'));
    folders
}

/// The active environment, else the one of the `python3` that a job would run.
fn python_environments(root: &Root, env: &Env) -> Vec<String> {
    let named = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| env.get(v));
    let path = env.get("PATH").unwrap_or_default();
    let python = path.split(':').find(|folder| root.exists(&format!("{folder}/python3")));
    let base = python.and_then(|folder| folder.trim_end_matches('/').strip_suffix("/bin"));
    named.chain(base).map(str::to_owned).collect()
}

/// A library's version: asked of the first file found, else read off its name
/// (`libnccl.so.2` is a link to `libnccl.so.2.28.9`).
fn library(
    root: &Root,
    folders: &[String],
    name: &str,
    major: u32,
    ask: fn(&libloading::Library) -> Option<String>,
) -> Option<String> {
    let candidates = [format!("{name}.{major}"), name.to_owned()];
    let paths = folders.iter().flat_map(|f| candidates.iter().map(move |c| format!("{f}/{c}")));
    let found = paths.into_iter().find_map(|path| root.resolve(&path));
    let Some(real) = found else {
        return if root.is_live() {
            open(PathBuf::from(&candidates[0])).and_then(|l| ask(&l))
        } else {
            None
        };
    };
    let asked =
        if root.is_live() { open(PathBuf::from(&real)).and_then(|l| ask(&l)) } else { None };
    asked.or_else(|| {
        let version = real.rsplit('/').next()?.strip_prefix(name)?.strip_prefix('.')?;
        version.contains('.').then(|| version.to_owned())
    })
}

fn open(path: PathBuf) -> Option<libloading::Library> {
    // SAFETY: NCCL, RCCL and libfabric do nothing in their constructors but set up their own
    // state; every program that trains here loads the same file.
    unsafe { libloading::Library::new(path) }.ok()
}

fn nccl_version(library: &libloading::Library) -> Option<String> {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> i32;
    // SAFETY: NCCL and RCCL document this symbol with this signature in every version.
    let get: libloading::Symbol<'_, GetVersion> =
        unsafe { library.get(b"ncclGetVersion\0") }.ok()?;
    let mut code = 0;
    // SAFETY: the argument points to an int that lives through the call.
    let result = unsafe { get(&mut code) };
    (result == 0).then(|| nccl_code(code))
}

/// 22809 is 2.28.9; up to 2.8 a version had three digits: 2708 is 2.7.8.
fn nccl_code(code: i32) -> String {
    match code {
        c if c >= 10_000 => format!("{}.{}.{}", c / 10_000, c / 100 % 100, c % 100),
        c => format!("{}.{}.{}", c / 1000, c / 100 % 10, c % 100),
    }
}

fn libfabric_version(library: &libloading::Library) -> Option<String> {
    type Version = unsafe extern "C" fn() -> u32;
    // SAFETY: libfabric documents this symbol with this signature in every version.
    let get: libloading::Symbol<'_, Version> = unsafe { library.get(b"fi_version\0") }.ok()?;
    // SAFETY: it takes nothing and only returns a constant.
    let code = unsafe { get() };
    Some(format!("{}.{}", code >> 16, code & 0xffff))
}

fn rocm(root: &Root, env: &Env) -> Option<String> {
    let base = env.get("ROCM_PATH").unwrap_or("/opt/rocm");
    let text = root.text(&format!("{base}/.info/version"))?;
    text.split('-').next().map(str::to_owned)
}

fn net_plugin(root: &Root, env: &Env, folders: &[String]) -> Option<String> {
    if let Some(named) = env.get("NCCL_NET_PLUGIN").filter(|p| p.starts_with('/')) {
        return root.exists(named).then(|| named.to_owned());
    }
    let names = ["librccl-net.so", "libnccl-net.so", "libnccl-net-ofi.so", "librccl-net-ofi.so"];
    let mut paths = folders.iter().flat_map(|f| names.iter().map(move |n| format!("{f}/{n}")));
    paths.find(|path| root.exists(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_codes() {
        assert_eq!(nccl_code(22809), "2.28.9");
        assert_eq!(nccl_code(22000), "2.20.0");
        assert_eq!(nccl_code(2708), "2.7.8");
    }
}
