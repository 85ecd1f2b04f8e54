//! `cargo xtask dist`: a wheel and a tarball for each architecture, which run on systems with an older C library
//! than this one's.

pub mod check;
mod elf;
pub mod glibc;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use self::glibc::GLIBC;
use crate::steps::{output, run};
use crate::test_programs;

/// Maximum size of the binary.
const MAX_BYTES: u64 = 20_000_000;

/// The profile of packages, which has a smaller binary.
const PROFILE: &str = "dist";

/// Architectures, as `uname -m` prints them.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// Packages of the Python package index that compile and link for other systems.
const TOOLS: [&str; 2] = ["maturin>=1.8,<2", "ziglang"];

/// The folder of packages.
const FOLDER: &str = "target/dist";

/// Shells, and the completion file of each below `share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/regatta"),
    ("zsh", "zsh/site-functions/_regatta"),
    ("fish", "fish/vendor_completions.d/regatta.fish"),
];

/// Builds the packages of all architectures, or of those named.
pub fn dist(names: impl Iterator<Item = String>) -> Result<()> {
    let architectures = architectures(names)?;
    let folder = Path::new(FOLDER);
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let tools = install_tools(folder)?;
    let share = Path::new("packaging/python/data/data/share");
    write_share(share)?;
    architectures.iter().try_for_each(|architecture| build(architecture, &tools, folder, share))
}

/// The named architectures; all without a name.
fn architectures(names: impl Iterator<Item = String>) -> Result<Vec<&'static str>> {
    let named: Vec<String> = names.collect();
    if let Some(name) = named.iter().find(|name| !ARCHITECTURES.contains(&name.as_str())) {
        bail!("{name}: expected {}", ARCHITECTURES.join(" or "));
    }
    let is_named = |name: &&str| named.is_empty() || named.iter().any(|named| named == name);
    Ok(ARCHITECTURES.into_iter().filter(is_named).collect())
}

/// Name of a tarball without its extension, and of the folder in it.
fn tarball_name(architecture: &str) -> String {
    format!("regatta-{}-{architecture}-linux", env!("CARGO_PKG_VERSION"))
}

/// The platform of a wheel.
fn platform(architecture: &str) -> String {
    format!("manylinux_{}_{}_{architecture}", GLIBC[0], GLIBC[1])
}

/// File name of a wheel.
fn wheel_name(architecture: &str) -> String {
    format!("regatta-{}-py3-none-{}.whl", env!("CARGO_PKG_VERSION"), platform(architecture))
}

/// Installs the tools into a virtual environment; its folder of programs.
fn install_tools(folder: &Path) -> Result<PathBuf> {
    let environment = std::path::absolute(folder.join("venv"))?;
    if !environment.join("bin/maturin").exists() {
        run("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let mut pip = Command::new(environment.join("bin/pip"));
        run("pip install", pip.args(["install", "--quiet"]).args(TOOLS))?;
    }
    Ok(environment.join("bin"))
}

/// Writes manual pages and completions, which the binary of this machine prints.
fn write_share(share: &Path) -> Result<()> {
    println!("xtask: build");
    let binary = test_programs::build(&["build", "--quiet", "--package", "regatta"])?.binary;
    let _ = std::fs::remove_dir_all(share);
    let write = |path: &str, words: &[&str]| -> Result<()> {
        let (text, path) = (output(Command::new(&binary).args(words))?, share.join(path));
        let parent = path.parent().unwrap_or(share);
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    for (shell, path) in COMPLETIONS {
        write(path, &["completions", shell])?;
    }
    write("man/man1/regatta.1", &["man"])?;
    for command in commands(&output(Command::new(&binary).arg("--help"))?) {
        write(&format!("man/man1/regatta-{command}.1"), &["man", &command])?;
    }
    Ok(())
}

/// The commands in the output of `--help`.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let rows = lines.take_while(|line| line.starts_with(' '));
    let names = rows
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Builds wheel and tarball of an architecture.
fn build(architecture: &str, tools: &Path, folder: &Path, share: &Path) -> Result<()> {
    let target = format!("{architecture}-unknown-linux-gnu");
    // Without rustup, a toolchain that has the target is enough.
    let _ = Command::new("rustup").args(["target", "add", &target]).status();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(tools.to_owned()).chain(std::env::split_paths(&path));
    let mut maturin = Command::new(tools.join("maturin"));
    maturin.args(["build", "--profile", PROFILE, "--zig", "--target", &target]);
    maturin.args(["--compatibility", &format!("manylinux_{}_{}", GLIBC[0], GLIBC[1])]);
    maturin.arg("--out").arg(std::path::absolute(folder)?);
    maturin.env("PATH", std::env::join_paths(paths)?).current_dir("packaging/python");
    run(&format!("wheel for {architecture}"), &mut maturin)?;
    let binary = PathBuf::from(format!("target/{target}/{PROFILE}/regatta"));
    tarball(architecture, &binary, folder, share)
}

/// Checks the binary and packs it with manual pages, completions and licenses.
fn tarball(architecture: &str, binary: &Path, folder: &Path, share: &Path) -> Result<()> {
    let name = tarball_name(architecture);
    let root = folder.join(&name);
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(root.join("bin")).with_context(|| root.display().to_string())?;
    let packed = root.join("bin/regatta");
    std::fs::copy(binary, &packed).with_context(|| binary.display().to_string())?;
    check_binary(&packed)?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(share).args(["README.md", "LICENSE-APACHE", "LICENSE-MIT"]).arg(&root);
    run("cp", &mut copy)?;
    let file = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--sort=name", "-czf", &file, &name]).current_dir(folder);
    run("tar", &mut tar)?;
    println!("xtask: {}", folder.join(file).display());
    Ok(())
}

/// # Errors
/// If the binary is too large or needs a newer C library.
fn check_binary(binary: &Path) -> Result<()> {
    let size = std::fs::metadata(binary).with_context(|| binary.display().to_string())?.len();
    ensure!(size <= MAX_BYTES, "{} has {size} bytes, more than {MAX_BYTES}", binary.display());
    glibc::check_package(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_help() {
        let help = "Text\n\nCommands:\n  map     Show\n          more\n  launch  Start\n  help    \
                    Print\n\nOptions:\n  -h";
        assert_eq!(commands(help), ["map", "launch"]);
        assert!(commands("Usage: regatta").is_empty());
    }

    #[test]
    fn architectures_are_all_without_a_name() {
        let named = |names: &[&str]| architectures(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(named(&[]).unwrap(), ARCHITECTURES);
        assert_eq!(named(&["aarch64"]).unwrap(), ["aarch64"]);
        assert!(named(&["arm"]).is_err());
    }
}
