//! Small file systems.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A tmpfs of 1 MiB over a folder, in its own mount namespace. Unmounted on drop.
pub struct SmallDisk {
    holder: Child,
    user: bool,
}

impl SmallDisk {
    /// Mounts a tmpfs over a folder; `None` if the system does not permit it.
    pub fn over(path: &Path) -> Option<Self> {
        let user = !rustix::process::geteuid().is_root();
        let mut holder = Command::new("unshare");
        holder.args(user.then_some("-r")).args(["-m", "sh", "-c"]);
        holder.arg("mount -t tmpfs -o size=1m tmpfs \"$0\" && echo ready && read _").arg(path);
        let piped = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = piped.spawn().ok()?;
        let mut ready_line = [0; 6];
        let ready = std::io::Read::read_exact(holder.stdout.as_mut()?, &mut ready_line).is_ok();
        let disk = Self { holder, user };
        ready.then_some(disk)
    }

    /// Wraps a command to run in the mount namespace.
    pub fn enter(&self, command: &Command) -> Command {
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &self.holder.id().to_string(), "-m"]);
        enter.args(if self.user { &["-U", "--preserve-credentials"][..] } else { &[] });
        enter.args(["env", "-i", "-C"]).arg(command.get_current_dir().unwrap());
        let word = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
            let mut word = name.to_owned();
            word.push("=");
            word.push(value.unwrap_or_default());
            word
        };
        enter.args(command.get_envs().map(word));
        enter.arg(command.get_program()).args(command.get_args());
        enter
    }

    /// A path in the mount namespace, as seen from outside.
    pub fn path(&self, inside: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(inside.strip_prefix("/").unwrap())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Fills a disk to the last byte.
pub fn fill(ballast: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(ballast).unwrap();
    for size in [4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}
