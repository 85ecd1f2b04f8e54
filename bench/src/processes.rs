//! Child processes that are told what to do by lines, and answer by lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// A child process, killed when dropped.
pub struct LineProcess {
    child: Child,
    /// `None` once it has ended.
    input: Option<ChildStdin>,
    /// Lines of the output, read by a thread, so that waiting for them can have a limit.
    lines: Receiver<String>,
}

impl LineProcess {
    /// Starts a process.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let name = command.get_program().display().to_string();
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.context(name)?;
        let (input, output) = (child.stdin.take(), child.stdout.take().context("no stdout")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        Ok(Self { child, input, lines })
    }

    /// Starts processes of this program and waits until each has written a line.
    pub fn spawn_own(arguments: impl IntoIterator<Item = Vec<String>>) -> Result<Vec<Self>> {
        let program = std::env::current_exe()?;
        let spawn =
            |arguments| Self::spawn(Command::new(&program).args::<Vec<String>, _>(arguments));
        let mut processes = arguments.into_iter().map(spawn).collect::<Result<Vec<_>>>()?;
        processes.iter_mut().try_for_each(|process| process.read_line().map(drop))?;
        Ok(processes)
    }

    /// Writes a line to its input.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("the input has ended")?;
        Ok(writeln!(input, "{line}")?)
    }

    /// The next line of its output.
    pub fn read_line(&mut self) -> Result<String> {
        match self.lines.recv() {
            Ok(line) => Ok(line.trim().to_owned()),
            Err(_) => bail!("the process exited: {}", self.child.wait()?),
        }
    }

    /// The next line of its output, or `None` if there is none within the limit.
    pub fn read_line_within(&mut self, limit: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the process ended; see its error above"),
        }
    }

    /// Ends the input of all processes and waits until they have exited successfully.
    pub fn finish(mut processes: Vec<Self>) -> Result<()> {
        processes.iter_mut().for_each(|process| process.input = None);
        processes.iter_mut().try_for_each(|process| {
            let status = process.child.wait()?;
            ensure!(status.success(), "a process failed with {status}");
            Ok(())
        })
    }
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        // A process that does not exit at the end of its input is killed.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a process of [`LineProcess::spawn_own`]: tells that it is ready, and waits for the words of a request.
pub fn request<const N: usize>() -> Result<[String; N]> {
    println!("prepared");
    let mut request = String::new();
    std::io::stdin().read_line(&mut request)?;
    let words: Vec<String> = request.split_whitespace().map(str::to_owned).collect();
    words.try_into().map_err(|_| anyhow::anyhow!("invalid request: {request}"))
}
