//! Link options of the plug-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // NCCL closes the library when the last communicator is destroyed, and may open it again. The table
    // must stay that of the first time: all ranks must select the same algorithm.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // NCCL needs the dynamic symbols only.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-all");
}
