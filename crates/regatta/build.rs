//! Strips the symbols of the release binary: cargo ignores `strip` for a package whose profile has an
//! override, such as the optimisation level of this one.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
