//! Builds the NCCL profiler plug-in that the binary contains, and strips the symbols of the release
//! binary: cargo ignores `strip` for a package whose profile has an override, such as the optimisation
//! level of this one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo's name of the plug-in's library.
const LIBRARY: &str = "libnccl_profiler_regatta.so";

/// What the plug-in is built from, relative to this package.
const SOURCES: [&str; 5] = [
    "../../plugins/profiler",
    "../../crates/events/src",
    "../../crates/events/Cargo.toml",
    "../../Cargo.lock",
    "../../Cargo.toml",
];

/// Variables that describe this build script or a lint run, and must not reach the plug-in's build:
/// clippy's wrapper, for example, creates no library.
const REMOVED: [&str; 3] = ["RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "CARGO_TARGET_DIR"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
    SOURCES.iter().for_each(|path| println!("cargo:rerun-if-changed={path}"));
    let library = build_profiler();
    println!("cargo:rustc-env=REGATTA_PROFILER_LIBRARY={}", library.display());
}

/// Builds the plug-in and returns the path of its library. Always optimised: its code runs in the user's
/// process.
fn build_profiler() -> PathBuf {
    let (target, out) = (variable("TARGET"), PathBuf::from(variable("OUT_DIR")));
    let folder = out.join("plugins");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--quiet", "--lib", "--release", "--manifest-path"]);
    cargo.arg(Path::new(SOURCES[0]).join("Cargo.toml"));
    // Its dependencies are among those of this package, which are here already, and the build of this
    // package has checked the version of Rust, or was told not to.
    cargo.args(["--locked", "--offline", "--ignore-rust-version"]);
    // NCCL needs the dynamic symbols only.
    cargo.args(["--config", "profile.release.strip=\"symbols\""]);
    cargo.args(["--config", "profile.release.codegen-units=1"]);
    cargo.args(["--config", "profile.release.lto=true"]);
    cargo.arg("--target").arg(&target).arg("--target-dir").arg(&folder);
    // A folder that the user has set would be locked by the build of this package.
    cargo.env("CARGO_BUILD_BUILD_DIR", &folder);
    for name in REMOVED {
        cargo.env_remove(name);
    }
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("the build of the NCCL profiler plug-in failed: {status}")),
        Err(error) => fail(&format!("cannot run cargo for the NCCL profiler plug-in: {error}")),
    }
    folder.join(target).join("release").join(LIBRARY)
}

fn variable(name: &str) -> OsString {
    std::env::var_os(name).unwrap_or_else(|| fail(&format!("cargo has not set {name}")))
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1)
}
