//! Link options of the plug-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // NCCL closes the library when the last communicator is destroyed, and may open it again. The thread
    // that writes events, and the handler of the process's exit, must stay mapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // NCCL needs the dynamic symbols only.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-all");
}
