//! Small file systems.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::TempDir;
use super::process::Process;
use super::train::train_command;

/// A tmpfs of 1 MiB over the folder `small`, in its own mount namespace. Unmounted on drop.
pub struct SmallDisk<'a> {
    folder: &'a TempDir,
    holder: Child,
    user: bool,
}

impl<'a> SmallDisk<'a> {
    /// Mounts the tmpfs; `None` with a message if the system does not permit it.
    pub fn or_skip(folder: &'a TempDir) -> Option<Self> {
        let disk = Self::mount(folder);
        if disk.is_none() {
            eprintln!("skipped: cannot mount a tmpfs");
        }
        disk
    }

    fn mount(folder: &'a TempDir) -> Option<Self> {
        std::fs::create_dir(folder.join("small")).unwrap();
        let user = !rustix::process::geteuid().is_root();
        let mut holder = Command::new("unshare");
        holder.args(user.then_some("-r")).args(["-m", "sh", "-c"]);
        holder.arg("mount -t tmpfs -o size=1m tmpfs \"$0\" && echo ready && read _");
        holder.arg(folder.join("small")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.stderr(Stdio::null()).spawn().ok()?;
        let mut ready_line = [0; 6];
        let ready = std::io::Read::read_exact(holder.stdout.as_mut()?, &mut ready_line).is_ok();
        let disk = Self { folder, holder, user };
        ready.then_some(disk)
    }

    /// Starts `regatta train` in the mount namespace.
    pub fn spawn_train(&self, words: &str) -> Process {
        let command = train_command(self.folder, words);
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &self.holder.id().to_string(), "-m"]);
        enter.args(if self.user { &["-U", "--preserve-credentials"][..] } else { &[] });
        enter.args(["env", "-i", "-C"]).arg(self.folder.path());
        for (name, value) in command.get_envs() {
            let mut word = name.to_owned();
            word.push("=");
            word.push(value.unwrap_or_default());
            enter.arg(word);
        }
        enter.arg(command.get_program()).args(command.get_args());
        Process::spawn(self.folder, &mut enter)
    }

    /// A path on the disk, as seen from outside of its mount namespace.
    pub fn path(&self, inside: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.folder.join("small").join(inside).strip_prefix("/").unwrap())
    }
}

impl Drop for SmallDisk<'_> {
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
