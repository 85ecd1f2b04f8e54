//! Builds the NCCL plug-ins that the binary contains, compressed, and strips the symbols of the release
//! binary: cargo ignores `strip` for a package whose profile has an override, such as the optimisation
//! level of this one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of the plug-ins, and cargo's names of their libraries.
const PLUGINS: [(&str, &str); 3] = [
    ("regatta-net", "libnccl_net_regatta.so"),
    ("regatta-profiler", "libnccl_profiler_regatta.so"),
    ("regatta-tuner", "libnccl_tuner_regatta.so"),
];

/// What the plug-ins are built from, relative to this package.
const SOURCES: [&str; 6] = [
    "../../plugins",
    "../../crates/events",
    "../../crates/fabric",
    "../../crates/nccl-tuning",
    "../../Cargo.lock",
    "../../Cargo.toml",
];

/// Compression level: about half of the size in half a second.
const LEVEL: u8 = 8;

/// Variables that describe this build script or a lint run, and must not reach the build of the plug-ins:
/// clippy's wrapper, for example, creates no library.
const REMOVED: [&str; 3] = ["RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "CARGO_TARGET_DIR"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
    SOURCES.iter().for_each(|path| println!("cargo:rerun-if-changed={path}"));
    let folder = build_plugins();
    for (_, library) in PLUGINS {
        compress(&folder.join(library));
    }
    println!("cargo:rustc-env=REGATTA_PLUGINS={}", folder.display());
}

/// Writes a compressed copy beside a library.
fn compress(library: &Path) {
    let bytes = std::fs::read(library);
    let bytes = bytes.unwrap_or_else(|error| fail(&format!("{}: {error}", library.display())));
    let compressed = miniz_oxide::deflate::compress_to_vec(&bytes, LEVEL);
    let path = library.with_extension("so.deflate");
    if let Err(error) = std::fs::write(&path, compressed) {
        fail(&format!("{}: {error}", path.display()));
    }
}

/// Builds the plug-ins and returns the folder of their libraries. Always optimised: their code runs in
/// the user's process.
fn build_plugins() -> PathBuf {
    let (target, out) = (variable("TARGET"), PathBuf::from(variable("OUT_DIR")));
    // Beside the folders of all build scripts: a lint run has another one than a build, and would build the
    // plug-ins once more.
    let folder = out.ancestors().nth(3).unwrap_or(&out).join("nccl-plugins");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--quiet", "--lib", "--release", "--manifest-path"]);
    cargo.arg("../../Cargo.toml");
    for (package, _) in PLUGINS {
        cargo.args(["--package", package]);
    }
    // Their dependencies are among those of this package, which are here already, and the build of this
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
        Ok(status) => fail(&format!("the build of the NCCL plug-ins failed: {status}")),
        Err(error) => fail(&format!("cannot run cargo for the NCCL plug-ins: {error}")),
    }
    folder.join(target).join("release")
}

fn variable(name: &str) -> OsString {
    std::env::var_os(name).unwrap_or_else(|| fail(&format!("cargo has not set {name}")))
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    std::process::exit(1)
}
