//! `regatta plugin check` on libraries that the tests compile.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::process::run_command;
use crate::support::{CommandOutput, TempDir, command};

/// The start of each library: tables of pointers, whose first is a name.
const TABLES: &str = r#"
#![no_std]
#![allow(non_upper_case_globals)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
#[repr(C)]
pub struct Table(*const u8, [usize; 20]);
unsafe impl Sync for Table {}
unsafe extern "C" { fn abort(); fn pause() -> i32; fn puts(text: *const u8) -> i32; }
macro_rules! tables {
    ($($symbol:ident $name:literal)*) => {
        $(#[no_mangle] pub static $symbol: Table = Table(concat!($name, "\0").as_ptr(), [0; 20]);)*
    };
}
macro_rules! initialiser {
    ($body:expr) => {
        extern "C" fn initialise() { unsafe { $body; } }
        #[used]
        #[link_section = ".init_array"]
        static INITIALISER: extern "C" fn() = initialise;
    };
}
"#;

/// Compiles a library with these linker arguments.
fn compile(folder: &Path, file: &str, source: &str, link: &[&str]) {
    let path = folder.join(file);
    std::fs::write(path.with_extension("rs"), format!("{TABLES}{source}")).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    rustc.args(["--edition=2021", "--crate-type=cdylib", "--crate-name=plugin", "-Cpanic=abort"]);
    rustc.args(["-Awarnings", "-o"]).arg(&path).arg(path.with_extension("rs"));
    rustc.args(link.iter().map(|argument| format!("-Clink-arg={argument}")));
    let output = rustc.current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
}

const ALL_KINDS: &str = r#"
tables! {
    ncclNetPlugin_v8 "Old network" ncclNetPlugin_v11 "Test network" ncclCollNetPlugin_v8 "x"
    ncclTunerPlugin_v3 "Test tuner" ncclProfiler_v4 "Test profiler"
}
#[no_mangle] pub static ncclProfiler_v5: Table = Table(core::ptr::null(), [0; 20]);
#[no_mangle] pub static ncclProfiler_v6: Table = Table(8 as *const u8, [0; 20]);
initialiser!(puts(b"printed by an initialiser\0".as_ptr()));
"#;

/// A folder with these libraries.
fn libraries(names: &[&str]) -> TempDir {
    let folder = TempDir::new();
    names.iter().for_each(|name| add_library(folder.path(), name));
    folder
}

fn add_library(folder: &Path, name: &str) {
    let net = "tables! { ncclNetPlugin_v8 \"Net\" }\n";
    let soname = format!("-Wl,-soname,{name}");
    match name {
        "libnccl-net-all.so" => compile(folder, name, ALL_KINDS, &[]),
        "newer.so" => compile(folder, name, "tables! { ncclNetPlugin_v99 \"Newer\" }", &[]),
        "crash.so" => compile(folder, name, &format!("{net}initialiser!(abort());"), &[]),
        "hang.so" => {
            compile(folder, name, &format!("{net}initialiser!(loop {{ pause(); }});"), &[])
        }
        "needs.so" => {
            for needed in ["libgone1.so", "libgone2.so", "libmid.so"] {
                add_library(folder, needed);
            }
            let runpath = "-Wl,--enable-new-dtags,-rpath,$ORIGIN";
            // The linker also looks for the libraries of libmid.so.
            let link =
                ["-Wl,--no-as-needed", "-L.", "-Wl,-rpath-link,.", "-lgone1", "-lmid", runpath];
            compile(folder, name, net, &link);
            for gone in ["libgone1.so", "libgone2.so"] {
                std::fs::remove_file(folder.join(gone)).unwrap();
            }
        }
        "libmid.so" => {
            compile(folder, name, "", &["-Wl,--no-as-needed", "-L.", "-lgone2", &soname]);
        }
        _ => compile(folder, name, "", &[&soname]),
    }
}

fn check(folder: &TempDir, words: &[&str], variables: &[(&str, &str)]) -> CommandOutput {
    let mut command = command();
    command.args(["plugin", "check"]).args(words).current_dir(folder.path());
    for name in ["NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "LD_LIBRARY_PATH"]
    {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    run_command(&mut command)
}

/// The report on a library in JSON and the exit status.
fn report(folder: &TempDir, words: &[&str]) -> (Value, i32) {
    let output = check(folder, &[&["--json"], words].concat(), &[]);
    let code = output.code.unwrap();
    let json: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(json["format"], "regatta-plugin-check/1");
    (json["libraries"][0].clone(), code)
}

fn used(library: &Value, release: &str, kind: &str) -> Value {
    let releases = library["releases"].as_array().unwrap();
    let release = releases.iter().find(|r| r["release"] == release).unwrap();
    release["kinds"].as_array().unwrap().iter().find(|k| k["kind"] == kind).unwrap()["used"].clone()
}

#[test]
fn kinds_versions_names_and_releases_are_reported() {
    let folder = libraries(&["libnccl-net-all.so"]);
    let (library, code) = report(&folder, &["./libnccl-net-all.so"]);
    assert_eq!((code, &library["usable"]), (0, &true.into()));
    assert_eq!(library["load"]["result"], "loaded");
    let interfaces = library["interfaces"].as_array().unwrap();
    let names: Vec<&str> = interfaces.iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Test network", "Test tuner", "Test profiler"], "of the newest with a name");
    assert_eq!(interfaces[2]["versions"], serde_json::json!([4, 5, 6]));
    assert_eq!(library["other_interfaces"], serde_json::json!(["collnet v8"]));
    assert_eq!(used(&library, "NCCL 2.28", "net"), 11);
    assert_eq!(used(&library, "NCCL 2.27", "net"), 8);
    assert_eq!(used(&library, "NCCL 2.19", "net"), Value::Null);
    assert_eq!(used(&library, "NCCL 2.28", "profiler"), 5);
    assert_eq!(used(&library, "RCCL of ROCm 6.4", "tuner"), 3);
    let text = check(&folder, &["./libnccl-net-all.so"], &[]).assert_ok([
        "loads        yes",
        "net          v8 v11, named \"Test network\"",
        "no: needs v5 to v7",
        "select it by NCCL_NET_PLUGIN=/",
    ]);
    assert!(!text.contains("printed by an initialiser"), "{text}");
}

#[test]
fn one_release_decides_the_status() {
    let folder = libraries(&["libnccl-net-all.so"]);
    let check = |release: &str| check(&folder, &["--nccl", release, "./libnccl-net-all.so"], &[]);
    check("2.28.9").assert_ok("loads, and NCCL 2.28 uses net v11, tuner v3, profiler v5\n");
    check("rocm-6.3").assert_ok("loads, and RCCL of ROCm 6.3 uses net v8\n");
    let failed = check("2.19").assert_code(1);
    assert!(failed.out.contains("exports net v8 v11, NCCL 2.19 needs v5 to v7"), "{}", failed.out);
    check("2.99").assert_error("no known release \"2.99\"");
}

#[test]
fn the_release_may_be_a_file() {
    let folder = libraries(&["libnccl-net-all.so", "libnone.so"]);
    let nccl = folder.write("libnccl.so.2", b"\x7fELF NCCL version 2.27.5+cuda12.9\0");
    let check = |file: &str| check(&folder, &["--nccl", file, "./libnccl-net-all.so"], &[]);
    check(&nccl).assert_ok("NCCL 2.27 uses net v8");
    check("./libnone.so").assert_error("is no library of NCCL or RCCL");
    let newer = folder.write("libnccl.so.3", b"NCCL version 2.77.1+cuda15.0\0");
    check(&newer).assert_error("is NCCL 2.77.1, whose plug-in versions are not known");
}

#[test]
fn all_missing_dependencies_are_named() {
    let folder = libraries(&["needs.so"]);
    let (library, code) = report(&folder, &["./needs.so"]);
    assert_eq!(code, 1);
    assert_eq!(library["load"]["result"], "failed");
    assert_eq!(library["verdict"], "does not load: libgone1.so, libgone2.so are missing");
    let output = check(&folder, &["./needs.so"], &[]).assert_code(1);
    assert!(output.out.contains("missing      libgone1.so, needed by needs.so"), "{}", output.out);
    assert!(output.out.contains("missing      libgone2.so, needed by libmid.so"), "{}", output.out);
    assert!(output.out.contains("note: put the directories of the missing"), "{}", output.out);
}

#[test]
fn initialisers_that_crash_or_hang_are_reported() {
    let folder = libraries(&["crash.so", "hang.so"]);
    let (library, code) = report(&folder, &["./crash.so"]);
    assert_eq!((code, &library["load"]["result"]), (1, &"crashed".into()));
    assert!(library["load"]["reason"].as_str().unwrap().contains("SIGABRT"), "{library}");
    let (library, code) = report(&folder, &["--timeout", "1", "./hang.so"]);
    assert_eq!((code, &library["load"]["result"]), (1, &"timed-out".into()));
    assert_eq!(library["load"]["reason"], "its initialisers did not end within 1 s");
    assert_eq!(library["interfaces"][0]["versions"], serde_json::json!([8]), "from the file");
}

#[test]
fn other_files_are_not_loaded() {
    let folder = libraries(&["newer.so"]);
    let verdict = |path: &str| {
        let (library, code) = report(&folder, &[path]);
        assert_eq!((code, &library["load"]["result"]), (1, &"not-tried".into()), "{library}");
        library["verdict"].as_str().unwrap().to_owned()
    };
    let script = folder.write("script.so", "INPUT(libnccl-net.so)\n");
    assert_eq!(verdict(&script), "not an ELF file");
    let library = std::fs::read(folder.join("newer.so")).unwrap();
    let changed = |at: usize, value: u8| {
        let mut library = library.clone();
        library[at] = value;
        library
    };
    let class_32 = folder.write("32-bit.so", changed(4, 1));
    assert_eq!(verdict(&class_32), "not a 64-bit little-endian ELF file");
    let riscv = folder.write("riscv.so", changed(0x12, 243));
    assert!(verdict(&riscv).starts_with("a library for riscv64, but this machine is "));
    check(&folder, &["./absent.so"], &[]).assert_error("cannot read /");
    check(&folder, &["./"], &[]).assert_error("cannot read ");
}

#[test]
fn libraries_that_no_release_uses_are_not_usable() {
    let folder = libraries(&["newer.so", "libnone.so"]);
    let (library, code) = report(&folder, &["./newer.so"]);
    assert_eq!((code, &library["load"]["result"]), (1, &"loaded".into()));
    assert_eq!(library["verdict"], "loads, but no known release uses the versions that it exports");
    let (library, code) = report(&folder, &["./libnone.so"]);
    assert_eq!(code, 1);
    assert!(library["verdict"].as_str().unwrap().starts_with("exports none of ncclNetPlugin_v*"));
}

#[test]
fn names_are_resolved_as_nccl_does() {
    let folder = libraries(&["libnccl-net-all.so"]);
    let dir = folder.path().to_str().unwrap();
    let path = format!("GOOD: {dir}/libnccl-net-all.so: ");
    let search = [("LD_LIBRARY_PATH", dir)];
    check(&folder, &["all"], &search).assert_ok(&path);
    check(&folder, &["libnccl-net-all.so"], &search).assert_ok(&path);
    check(&folder, &["all"], &[])
        .assert_error("all not found: the loader finds none of all, libnccl-net-all.so");
    let note =
        "by the name libnccl-net-all.so NCCL does not find this file of the working directory";
    check(&folder, &["libnccl-net-all.so"], &[]).assert_ok([path.as_str(), note]);
}

#[test]
fn without_a_path_the_environment_selects() {
    let folder = libraries(&["libnccl-net-all.so", "newer.so"]);
    let dir = folder.path().to_str().unwrap();
    let all = format!("{dir}/libnccl-net-all.so");
    let search = ("LD_LIBRARY_PATH", dir);
    check(&folder, &["--nccl", "2.28"], &[]).assert_ok([
        "net       default name  none: libnccl-net.so not found",
        "note: without a net plug-in",
    ]);
    let variables = [search, ("NCCL_NET_PLUGIN", "all"), ("NCCL_TUNER_PLUGIN", "none")];
    check(&folder, &["--nccl", "2.28"], &variables).assert_ok([
        format!("NCCL_NET_PLUGIN=all     {all}\n").as_str(),
        "NCCL_TUNER_PLUGIN=none  disabled\n",
        format!("{all}, as a part of the net plug-in\n").as_str(),
    ]);
    let failed = |release: &str, variables: &[(&str, &str)], part: &str| {
        let output = check(&folder, &["--nccl", release], variables).assert_code(1);
        assert!(output.out.contains(part), "{part}:\n{}", output.out);
    };
    failed(
        "2.28",
        &[("NCCL_NET_PLUGIN", "gone")],
        "failure: NCCL_NET_PLUGIN=gone: not found as gone,",
    );
    failed("2.19", &variables, "needs v5 to v7");
    let wrong = [("NCCL_PROFILER_PLUGIN", &*format!("{dir}/newer.so"))];
    failed("2.28", &wrong, "newer.so exports no profiler plug-in");
}

/// None needs a vendor's library: libfabric is opened when NCCL initialises the network plug-in.
#[test]
fn installed_plugins_of_this_program_load_and_are_used() {
    let folder = TempDir::new();
    let mut install = command();
    run_command(install.args(["plugin", "install", "."]).current_dir(folder.path())).ok();
    let kinds =
        [("profiler", vec![3, 4, 5, 6]), ("tuner", vec![3, 4, 5]), ("net", vec![8, 9, 10, 11])];
    for (kind, versions) in kinds {
        let (library, code) = report(&folder, &[&format!("./libnccl-{kind}-regatta.so")]);
        assert_eq!(code, 0, "{library}");
        assert_eq!(library["interfaces"][0]["kind"], kind);
        assert_eq!(library["interfaces"][0]["versions"], Value::from(versions));
        assert_eq!(library["interfaces"][0]["name"], "Regatta");
        assert!(!library["dependencies"].to_string().contains("fabric"), "{library}");
    }
}
