//! `cargo xtask check-dist`: installs what `cargo xtask dist` built and runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::{FOLDER, architectures, check_binary, platform, tarball_name, wheel_name};
use crate::steps::run;

/// Folder of the C libraries of other architectures, as Debian's packages install them.
const SYSROOT: &str = "/usr";

/// A training that takes seconds, also in an emulator.
const SHORT_TRAINING: [&str; 9] = [
    "train",
    "-n2",
    "train.steps=2",
    "train.batch=2",
    "train.eval_interval=0",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.seq_len=16",
];

/// A file that the wheel and the tarball have beside the binary.
const MANUAL_PAGE: &str = "share/man/man1/regatta.1";

/// Checks the packages of all architectures, or of those named.
pub fn check_dist(names: impl Iterator<Item = String>) -> Result<()> {
    for architecture in architectures(names)? {
        let folder = std::path::absolute(Path::new(FOLDER).join(format!("check-{architecture}")))?;
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let runner = Runner::of(architecture, Path::is_file);
        if let Runner::None(why) = &runner {
            println!("xtask: {architecture}: installed, but not run: {why}");
        }
        let installed = [unpack(architecture, &folder)?, install(architecture, &folder)?];
        for root in &installed {
            let binary = root.join("bin/regatta");
            check_binary(&binary)?;
            let page = root.join(MANUAL_PAGE);
            ensure!(page.is_file(), "{} is missing", page.display());
            try_out(&binary, &runner, &folder)?;
        }
        println!("xtask: {architecture}: checked {} and the tarball", wheel_name(architecture));
    }
    Ok(())
}

/// Unpacks the tarball; the folder in it.
fn unpack(architecture: &str, folder: &Path) -> Result<PathBuf> {
    let name = tarball_name(architecture);
    let file = package(&format!("{name}.tar.gz"))?;
    run("tar", Command::new("tar").arg("xzf").arg(file).arg("-C").arg(folder))?;
    Ok(folder.join(name))
}

/// Installs the wheel into a new virtual environment, without any package index; its folder. A wheel of another
/// architecture is installed into a folder: pip refuses it otherwise.
fn install(architecture: &str, folder: &Path) -> Result<PathBuf> {
    let wheel = package(&wheel_name(architecture))?;
    let environment = folder.join("venv");
    run("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(wheel);
    if architecture == std::env::consts::ARCH {
        run("pip install", &mut pip)?;
        return Ok(environment);
    }
    let target = folder.join("wheel");
    pip.args(["--only-binary=:all:", "--platform", &platform(architecture), "--target"]);
    run("pip install", pip.arg(&target))?;
    Ok(target)
}

fn package(name: &str) -> Result<PathBuf> {
    let path = std::path::absolute(Path::new(FOLDER).join(name))?;
    ensure!(path.is_file(), "{} is missing: run cargo xtask dist", path.display());
    Ok(path)
}

/// How programs of an architecture run on this machine.
#[derive(Debug, PartialEq, Eq)]
enum Runner {
    Native,
    /// Program and arguments of an emulator.
    Emulator(Vec<String>),
    /// They do not, and why.
    None(String),
}

impl Runner {
    fn of(architecture: &str, is_file: impl Fn(&Path) -> bool) -> Self {
        if architecture == std::env::consts::ARCH {
            return Self::Native;
        }
        let sysroot = format!("{SYSROOT}/{architecture}-linux-gnu");
        let names = ["-static", ""].map(|suffix| format!("/usr/bin/qemu-{architecture}{suffix}"));
        let emulator = names.into_iter().find(|path| is_file(Path::new(path)));
        let has_libc = is_file(&Path::new(&sysroot).join("lib/libc.so.6"));
        match emulator {
            Some(emulator) if has_libc => Self::Emulator(vec![emulator, "-L".to_owned(), sysroot]),
            Some(_) => {
                Self::None(format!("{sysroot} has no C library ({})", libc_package(architecture)))
            }
            None => Self::None(format!("qemu-{architecture} (qemu-user-static) is not installed")),
        }
    }

    /// The command that runs a binary with these arguments. The ranks that it starts need the emulator, too:
    /// unlike the kernel with `binfmt_misc`, `exec` does not know it.
    fn command(&self, binary: &Path, arguments: &[&str]) -> Result<Command> {
        let (program, before) = match self {
            Self::Native => (binary.as_os_str(), [].as_slice()),
            Self::Emulator(emulator) => {
                let (program, before) = emulator.split_first().context("no emulator")?;
                (program.as_ref(), before)
            }
            Self::None(why) => bail!("{}: {why}", binary.display()),
        };
        let mut command = Command::new(program);
        if !before.is_empty() {
            command.args(before).arg(binary);
        }
        command.args(arguments);
        if let (Self::Emulator(emulator), Some(&"train")) = (self, arguments.first()) {
            command.args(["--launch", &format!("--wrap '{}'", emulator.join(" "))]);
        }
        Ok(command)
    }
}

/// Debian's package with the C library of another architecture.
fn libc_package(architecture: &str) -> &'static str {
    if architecture == "aarch64" { "libc6-arm64-cross" } else { "libc6-amd64-cross" }
}

/// Runs the binary in a folder.
fn try_out(binary: &Path, runner: &Runner, folder: &Path) -> Result<()> {
    if matches!(runner, Runner::None(_)) {
        return Ok(());
    }
    let runs: [&[&str]; 3] = [&["map", "--system", "alps"], &["map"], &SHORT_TRAINING];
    for arguments in runs {
        let mut command = runner.command(binary, arguments)?;
        run(&format!("{command:?}"), command.current_dir(folder))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The architecture that this machine does not have.
    fn foreign() -> &'static str {
        super::super::ARCHITECTURES
            .into_iter()
            .find(|name| *name != std::env::consts::ARCH)
            .unwrap()
    }

    fn words(command: &Command) -> Vec<String> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn programs_of_this_machine_run_without_an_emulator() {
        let runner = Runner::of(std::env::consts::ARCH, |_| false);
        assert_eq!(runner, Runner::Native);
        let command = runner.command(Path::new("/b/regatta"), &["train", "-n2"]).unwrap();
        assert_eq!(words(&command), ["/b/regatta", "train", "-n2"]);
    }

    #[test]
    fn ranks_of_an_emulated_training_are_emulated_too() {
        let runner = Runner::of(foreign(), |_| true);
        let emulator = format!("/usr/bin/qemu-{}-static", foreign());
        let sysroot = format!("/usr/{}-linux-gnu", foreign());
        let command =
            |arguments| words(&runner.command(Path::new("/b/regatta"), arguments).unwrap());
        assert_eq!(command(&["map"]), [&emulator, "-L", &sysroot, "/b/regatta", "map"]);
        let wrap = format!("--wrap '{emulator} -L {sysroot}'");
        let expected = [&emulator, "-L", &sysroot, "/b/regatta", "train", "--launch", &wrap];
        assert_eq!(command(&["train"]), expected);
    }

    #[test]
    fn without_an_emulator_or_a_c_library_programs_do_not_run() {
        let no_emulator = Runner::of(foreign(), |_| false);
        let no_libc = Runner::of(foreign(), |path| !path.ends_with("libc.so.6"));
        let dynamic = Runner::of(foreign(), |path| !path.to_string_lossy().ends_with("-static"));
        assert!(matches!(&no_emulator, Runner::None(why) if why.contains("qemu-user-static")));
        assert!(matches!(&no_libc, Runner::None(why) if why.contains("has no C library")));
        assert!(matches!(&dynamic, Runner::Emulator(words) if !words[0].ends_with("-static")));
        assert!(no_emulator.command(Path::new("regatta"), &["map"]).is_err());
    }
}
