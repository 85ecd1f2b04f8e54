//! Disks that are soon full.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A file system of a megabyte over a folder, seen only by those who enter. It goes when this does.
pub struct SmallDisk {
    holder: Child,
    user: bool,
}

impl SmallDisk {
    /// Where the system lets us make one.
    pub fn over(path: &Path) -> Option<Self> {
        let user = !rustix::process::geteuid().is_root();
        let mut holder = Command::new("unshare");
        holder.args(user.then_some("-r")).args(["-m", "sh", "-c"]);
        holder.arg("mount -t tmpfs -o size=1m tmpfs \"$0\" && echo ready && read _").arg(path);
        let piped = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = piped.spawn().ok()?;
        let mut said = [0; 6];
        let ready = std::io::Read::read_exact(holder.stdout.as_mut()?, &mut said).is_ok();
        // Who is not ready has ended, which is heard of when it is dropped.
        let disk = Self { holder, user };
        ready.then_some(disk)
    }

    /// A command that sees it.
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

    /// A path in there, as we see it.
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

/// Fills a disk to its last byte.
pub fn fill(ballast: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(ballast).unwrap();
    for size in [4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}
