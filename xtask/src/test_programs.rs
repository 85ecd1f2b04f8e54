//! Runs the test programs of the workspace, two at once where they do not disturb each other.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Packages and targets that run beside any other program, in this order: they compute in their own process,
/// or run on hosts whose network, `/tmp`, `/dev/shm` and control groups are their own. All others share the
/// processes, the `/dev/shm` and the network of this machine, and run one at a time.
///
/// The tests of `cuda` use what those of `comm`, the first of the others, leave of the cores. Those of the
/// cluster mostly wait, beside those of `regatta` that train.
const ISOLATED: [(&str, Option<&str>); 4] =
    [("cuda", None), ("regatta", Some("cluster")), ("cpu", None), ("train", None)];

/// The package whose tests run at a low priority. They have no timeouts. Collectives wait actively: beside
/// a program of the same priority, some of `comm` take twice as long.
const LOW_PRIORITY: &str = "cuda";

/// A compiled test program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TestProgram {
    package: String,
    target: String,
    executable: PathBuf,
    /// The folder of its package, in which it runs.
    dir: PathBuf,
}

/// What cargo built.
#[derive(Debug, Default)]
pub struct Build {
    programs: Vec<TestProgram>,
    /// The binary `regatta`, which tests execute.
    pub binary: PathBuf,
}

/// A test program that failed.
#[derive(Debug)]
pub struct FailedProgram {
    /// Package and target, such as `regatta cluster`.
    pub name: String,
    /// The output of its failed tests.
    pub failures: String,
}

/// Runs all test programs, also after a failure. Returns those that failed.
pub fn run(variables: &[(&str, &str)], build: Build) -> Result<Vec<FailedProgram>> {
    let [shared, isolated] = queues(build.programs).map(Mutex::new);
    let failed = Mutex::new(Vec::new());
    let run_all = |queue: &Mutex<VecDeque<TestProgram>>| -> Result<()> {
        while let Some(program) = next(queue) {
            let failure = program.run(variables)?;
            failed.lock().unwrap_or_else(PoisonError::into_inner).extend(failure);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| run_all(&isolated));
        run_all(&shared)?;
        run_all(&isolated)?;
        beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn next(queue: &Mutex<VecDeque<TestProgram>>) -> Option<TestProgram> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// The programs that run one at a time, and those that run beside any other.
fn queues(programs: Vec<TestProgram>) -> [VecDeque<TestProgram>; 2] {
    let (mut isolated, mut shared): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| program.isolated_rank().is_some());
    // In an order that does not depend on the build.
    shared.sort_by_key(TestProgram::name);
    isolated.sort_by_key(|program| (program.isolated_rank(), program.name()));
    [shared, isolated].map(VecDeque::from)
}

/// Builds the test programs and lists them in the order in which cargo finished them.
pub fn build(cargo: &mut Command) -> Result<Build> {
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let start = Instant::now();
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo test --no-run")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    println!("xtask: tests built in {:.0} s", start.elapsed().as_secs_f64());
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// The programs in cargo's messages, one JSON object per line.
pub fn parse(messages: &str) -> Result<Build> {
    let mut build = Build::default();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo's messages")?;
        build.programs.extend(program(&message));
        build.binary = binary(&message).unwrap_or(build.binary);
    }
    ensure!(
        !build.binary.as_os_str().is_empty(),
        "cargo's messages do not name the binary regatta"
    );
    Ok(build)
}

/// The path of the binary in the message of its build.
fn binary(message: &Value) -> Option<PathBuf> {
    let is_binary =
        message["target"]["kind"] == json!(["bin"]) && message["target"]["name"] == "regatta";
    let executable = message["executable"].as_str()?;
    (is_binary && message["profile"]["test"] == false).then(|| executable.into())
}

fn program(message: &Value) -> Option<TestProgram> {
    let is_test = message["profile"]["test"].as_bool()?;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?;
    // The folder has the name of the package without the prefix that those of libraries have.
    let (package, target) = (dir.file_name()?.to_str()?, message["target"]["name"].as_str()?);
    let (package, target) = (package.to_owned(), target.to_owned());
    Some(TestProgram { package, target, executable: executable.into(), dir: dir.to_owned() })
}

impl TestProgram {
    /// Package and target, such as `regatta cluster`.
    fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    /// Its position in [`ISOLATED`].
    fn isolated_rank(&self) -> Option<usize> {
        ISOLATED.iter().position(|(package, target)| {
            self.package == *package && target.is_none_or(|target| self.target == target)
        })
    }

    /// The command that runs it.
    fn command(&self) -> Command {
        if self.package != LOW_PRIORITY {
            return Command::new(&self.executable);
        }
        let mut nice = Command::new("nice");
        nice.args(["-n", "10"]).arg(&self.executable);
        nice
    }

    /// Runs it, and prints its output at its end: that of programs that run at once would be mixed.
    fn run(&self, variables: &[(&str, &str)]) -> Result<Option<FailedProgram>> {
        let name = self.name();
        println!("xtask: running {name}");
        let start = Instant::now();
        let mut command = self.command();
        command.current_dir(&self.dir).env("CARGO_MANIFEST_DIR", &self.dir);
        command.envs(variables.iter().copied());
        let output = command.output().with_context(|| self.executable.display().to_string())?;
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let seconds = start.elapsed().as_secs_f64();
        println!("xtask: {name} ({seconds:.1} s)\n{err}{out}");
        if output.status.success() {
            return Ok(None);
        }
        let failures = match failures(&out) {
            Some(failures) => failures.to_owned(),
            None => format!("{}\n{err}{out}", output.status),
        };
        Ok(Some(FailedProgram { name, failures }))
    }
}

/// The part of a test program's output about its failed tests; none if the program crashed.
fn failures(output: &str) -> Option<&str> {
    output.find("\nfailures:\n").map(|at| &output[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, target: &str, executable: &str, test: bool) -> String {
        let kind = if test { "test" } else { "bin" };
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/{package}/Cargo.toml",
               "target":{{"name":"{target}","kind":["{kind}"]}},"profile":{{"test":{test}}},
               "executable":{executable}}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn test_programs_are_those_with_an_executable() {
        let messages = [
            artifact("comm", "regatta_comm", "null", false),
            artifact("comm", "chaos", "\"/t/chaos-1\"", true),
            artifact("regatta", "regatta", "\"/t/regatta\"", false),
            artifact("regatta", "chaos", "\"/t/chaos-2\"", true),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "not a message".to_owned(),
        ];
        let Build { programs, binary } = parse(&messages.join("\n")).unwrap();
        let names: Vec<_> = programs.iter().map(TestProgram::name).collect();
        assert_eq!(names, ["comm chaos", "regatta chaos"]);
        assert_eq!(programs[0].dir, Path::new("/w/crates/comm"));
        assert_eq!(binary, Path::new("/t/regatta"));
        assert!(parse("{").is_err());
        assert!(parse(&messages[1]).is_err(), "without the binary");
    }

    #[test]
    fn the_failures_follow_the_results_of_all_tests() {
        let result =
            "failures:\n\n---- a stdout ----\nwhy\n\nfailures:\n    a\n\ntest result: FAILED";
        assert_eq!(
            failures(&format!("running 1 test\ntest a ... FAILED\n\n{result}")),
            Some(result)
        );
        assert_eq!(failures("running 1 test\n"), None);
    }

    #[test]
    fn isolated_programs_have_a_queue_in_the_order_of_the_table() {
        let names = [
            ("regatta", "launch"),
            ("train", "zero"),
            ("regatta", "cluster"),
            ("comm", "integration"),
            ("cuda", "trace"),
            ("cuda", "graph"),
        ];
        let messages = names.map(|(package, target)| artifact(package, target, "\"/t/x\"", true));
        let binary = artifact("regatta", "regatta", "\"/t/regatta\"", false);
        let queues = queues(parse(&(messages.join("\n") + "\n" + &binary)).unwrap().programs);
        let names = queues.map(|queue| queue.iter().map(TestProgram::name).collect::<Vec<_>>());
        let isolated = ["cuda graph", "cuda trace", "regatta cluster", "train zero"];
        assert_eq!(names, [["comm integration", "regatta launch"].as_slice(), &isolated]);
    }
}
