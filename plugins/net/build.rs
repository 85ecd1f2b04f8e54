//! Link options of the plug-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // NCCL closes the library when the last communicator is destroyed, and may open it again. Endpoints
    // and libfabric, whose providers leave threads and handlers behind, stay until the process exits.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // NCCL needs the dynamic symbols only.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-all");
}
