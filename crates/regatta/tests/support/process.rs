//! Commands, running processes, and jobs whose ranks are shell scripts.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use regatta_model::document;
use regatta_model::result::RunResult;
use regatta_testbed::default_signals;

use super::{CommandOutput, REGATTA, TempDir, clean_env, command};

/// `regatta` with space-separated arguments in a folder, which also has its temporary files. GPUs are
/// hidden: only host backends are tested here.
pub fn regatta_in(folder: &TempDir, words: &str) -> Command {
    let mut command = command();
    command.env("TMPDIR", folder.path()).current_dir(folder.path());
    command.env("CUDA_VISIBLE_DEVICES", "").env("ROCR_VISIBLE_DEVICES", "");
    command.args(shlex::split(words).unwrap());
    command
}

/// Runs `regatta` in a folder to its end.
pub fn run_in(folder: &TempDir, words: &str) -> CommandOutput {
    run_command(&mut regatta_in(folder, words))
}

/// Wraps a command by `program` with its arguments, with the same environment and folder.
pub fn wrap(command: &Command, program: &str, args: &[&str]) -> Command {
    let mut wrapped = clean_env(Command::new(program));
    wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    wrapped.current_dir(command.get_current_dir().unwrap());
    wrapped.args(args).arg(command.get_program()).args(command.get_args());
    wrapped
}

/// A job of `regatta` itself: `launch OPTIONS -- regatta WORDS`, in a run folder `run`.
pub fn launch_regatta(folder: &TempDir, options: &str, words: &str) -> Command {
    let launch = "launch --oversubscribe --run-dir run";
    regatta_in(folder, &format!("{launch} {options} -- {REGATTA} {words}"))
}

/// A job whose ranks run a shell script, oversubscribed if necessary.
pub fn shell_job(folder: &TempDir, options: &str, script: &str) -> Command {
    let mut job = command();
    job.env("TMPDIR", folder.path()).current_dir(folder.path());
    job.args(["launch", "--oversubscribe"]);
    job.args(shlex::split(options).unwrap()).args(["--", "sh", "-c", script]);
    job
}

/// Runs a job of shell scripts to its end.
pub fn run_job(folder: &TempDir, options: &str, script: &str) -> CommandOutput {
    run_command(&mut shell_job(folder, options, script))
}

/// Runs a command to its end.
pub fn run_command(job: &mut Command) -> CommandOutput {
    CommandOutput::from(job.output().unwrap())
}

/// Runs a command with a full standard output, and asserts that it fails for that reason alone.
#[track_caller]
pub fn assert_full_output_is_an_error(command: &mut Command) {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = run_command(command.stdout(full)).assert_code(1);
    let is_error = |line: &&str| line.starts_with("error: standard output");
    let errors: Vec<&str> = run.err.lines().filter(is_error).collect();
    assert_eq!(errors.len(), 1, "{command:?}: {run:?}");
    assert!(errors[0].contains(": No space left on device"), "{command:?}: {run:?}");
}

/// A command whose standard output is a full pipe, so that it blocks when it writes.
pub struct BlockedOutput {
    child: Child,
    reader: PipeReader,
    /// Bytes that fill the pipe.
    filled: usize,
}

impl BlockedOutput {
    pub fn spawn(mut command: Command) -> Self {
        let (reader, mut writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut filled = 0;
        while let Ok(count) = writer.write(b"x") {
            filled += count;
        }
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let command = default_signals(&mut command);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, reader, filled }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the output to its end and waits for the command.
    pub fn read(self) -> CommandOutput {
        let Self { child, mut reader, filled } = self;
        let mut out = String::new();
        reader.read_to_string(&mut out).unwrap();
        let mut run = CommandOutput::from(child.wait_with_output().unwrap());
        run.out = out.split_off(filled);
        run
    }
}

/// The result of a run.
pub fn run_result(folder: &TempDir, run: &str) -> RunResult {
    document::from_json(&folder.read(format!("{run}/result.json"))).unwrap()
}

/// The log of a rank.
pub fn rank_log(folder: &TempDir, run: &str, rank: u32, stream: &str) -> String {
    folder.read(format!("{run}/log/rank-{rank}.{stream}"))
}

/// A running process, killed on drop.
pub struct Process {
    pub child: Child,
    /// Files for stdout and stderr, because a pipe could fill up and block it.
    output: [PathBuf; 2],
}

impl Process {
    pub fn spawn(folder: &TempDir, command: &mut Command) -> Self {
        let output = ["out", "err"].map(|stream| folder.new_file(stream));
        let [out, err] = output.each_ref().map(|path| File::create(path).unwrap());
        let child = default_signals(command).stdout(out).stderr(err).spawn().unwrap();
        Self { child, output }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.output[0]).unwrap()
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.output[1]).unwrap()
    }

    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn signal(&self, signal: i32) {
        kill(&format!("-{signal} {}", self.pid()));
    }

    /// Sends SIGINT and waits for the end.
    pub fn interrupt(self) -> CommandOutput {
        self.signal(libc::SIGINT);
        self.wait()
    }

    /// Waits for the end.
    pub fn wait(mut self) -> CommandOutput {
        let code = self.child.wait().unwrap().code();
        let [out, err] =
            self.output.each_ref().map(|path| std::fs::read_to_string(path).unwrap_or_default());
        CommandOutput { code, out, err }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `kill` with space-separated arguments.
pub fn kill(words: &str) {
    assert!(
        Command::new("kill").args(words.split(' ')).status().unwrap().success(),
        "kill {words}"
    );
}

/// Sends a signal to a process that may have exited.
pub fn signal_if_alive(pid: u32, signal: i32) {
    let words = [format!("-{signal}"), pid.to_string()];
    Command::new("kill").args(words).stderr(Stdio::null()).status().unwrap();
}

/// The state of a process in `/proc`; `-` if it does not exist.
pub fn process_state(pid: impl Display) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next()).unwrap_or('-')
}

/// Whether a process is alive; zombies are not.
pub fn is_alive(pid: impl Display) -> bool {
    !matches!(process_state(pid), '-' | 'Z')
}

/// The processes with a working directory, each with its rank if it is one.
pub fn processes(folder: impl AsRef<Path>) -> Vec<(u32, Option<u32>)> {
    let rank = |pid: u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut words = environment.split(|byte| *byte == 0);
        let text = words.find_map(|word| word.strip_prefix(b"RANK="))?;
        std::str::from_utf8(text).ok()?.parse().ok()
    };
    let is_in_folder = |pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder.as_ref())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_in_folder).map(|pid| (pid, rank(pid))).collect()
}

/// The PID of a rank, if it runs.
pub fn pid_of_rank(folder: impl AsRef<Path>, rank: u32) -> Option<u32> {
    processes(folder).into_iter().find(|(_, r)| *r == Some(rank)).map(|(pid, _)| pid)
}

/// The addresses on which a process listens for TCP connections, as in `/proc/net/tcp`.
pub fn listening_addresses(pid: u32) -> Vec<String> {
    const LISTEN: &str = "0A";
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links: Vec<PathBuf> = files.filter_map(|f| std::fs::read_link(f.path()).ok()).collect();
    let mut addresses = Vec::new();
    for family in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{family}"));
        for line in table.unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let socket = PathBuf::from(format!("socket:[{}]", fields[9]));
            if fields[3] == LISTEN && links.contains(&socket) {
                addresses.push(fields[1].rsplit_once(':').unwrap().0.to_owned());
            }
        }
    }
    addresses
}
