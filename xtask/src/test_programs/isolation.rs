//! Runs test programs in namespaces of their own, so that they do not disturb each other: users (unless
//! root), processes, network, shared memory and `/tmp`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::system_packages::id;

/// What every program gets a new one of.
const NAMESPACES: [&str; 8] = [
    "--mount",
    "--pid",
    "--net",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation=private",
];

/// How test programs are isolated on this machine.
pub struct Isolation {
    /// The numbers of the user and its group; none for root.
    user: Option<[String; 2]>,
    /// Folders below `/tmp` that programs need.
    shared: Vec<PathBuf>,
}

/// The folder that is `/tmp` for one program, removed on drop.
pub struct PrivateTmp(PathBuf);

impl Isolation {
    /// Tries whether this user may create namespaces. `binary` is in cargo's target folder.
    pub fn probe(binary: &Path) -> Result<Self, String> {
        let user =
            (id("-u")? != "0").then(|| Ok::<_, String>([id("-u")?, id("-g")?])).transpose()?;
        let workspace = std::env::current_dir().map_err(|error| error.to_string())?;
        let target = binary.ancestors().nth(2).unwrap_or(binary).to_owned();
        let below_tmp = |folder: &PathBuf| folder.starts_with("/tmp");
        let shared = [workspace, target].into_iter().filter(below_tmp).collect();
        let isolation = Self { user, shared };
        let tmp = PrivateTmp::create().map_err(|error| format!("{error:#}"))?;
        let output = isolation.command(&tmp, Path::new("true")).output();
        let output = output.map_err(|error| format!("unshare: {error}"))?;
        match output.status.success() {
            true => Ok(isolation),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    /// The command that runs a program, to be followed by its arguments.
    pub fn command(&self, tmp: &PrivateTmp, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        if self.user.is_some() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(NAMESPACES).args(["bash", "-c", include_str!("isolate.sh"), "isolate"]);
        command.arg(&tmp.0).arg(self.shared.len().to_string()).args(&self.shared);
        if let Some([user, group]) = &self.user {
            // Mounting needs root, but the program is to run as the user.
            command.args(["unshare", "--user", "--map-user", user, "--map-group", group, "--"]);
        }
        command.env("TMPDIR", "/tmp").arg(program);
        command
    }
}

impl PrivateTmp {
    pub fn create() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("regatta-xtask-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o1777))?;
        Ok(Self(path))
    }
}

impl Drop for PrivateTmp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolated_programs_have_their_own_processes_and_files_or_a_reason_is_given() {
        let binary = std::env::current_exe().unwrap();
        let isolation = match Isolation::probe(&binary) {
            Ok(isolation) => isolation,
            Err(why) => return assert!(!why.is_empty()),
        };
        let tmp = PrivateTmp::create().unwrap();
        let script = "touch /tmp/own /dev/shm/own; ls /tmp /dev/shm /proc | tr '\\n' ' '; exit 7";
        let output = isolation.command(&tmp, Path::new("bash")).args(["-c", script]).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("/dev/shm: own "), "{text}");
        // A workspace below /tmp stays visible.
        let private = text.split("/tmp: ").nth(1).unwrap_or("").split(' ');
        assert!(private.take(1 + isolation.shared.len()).any(|name| name == "own"), "{text}");
        let pids = text.split(' ').filter(|word| word.parse::<u32>().is_ok()).count();
        assert!(pids < 6, "{text}");
        assert!(!Path::new("/tmp/own").exists());
    }
}
