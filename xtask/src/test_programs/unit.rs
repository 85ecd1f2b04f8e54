//! What runs as one process: a test program, or one module of those that consist of many.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitId, WaitIdOptions};

use super::artifacts::TestProgram;
use super::isolation::{Isolation, PrivateTmp};
use super::schedule::Load;
use crate::steps::output;

/// Packages whose tests wait actively: for other ranks, or for libfabric.
const SPINNING: [&str; 2] = ["comm", "net"];

/// Packages whose tests compute in their own process, without timeouts.
const COMPUTING: [&str; 6] = ["cuda", "cpu", "train", "predict", "place", "nccl-tuning"];

/// What takes longest, longest first. The rest follows in the order of names.
const LONGEST: [&str; 12] = [
    "cuda integration emulated_amd",
    "net fake_host",
    "regatta cluster chaos",
    "cuda integration fake_conformance",
    "comm integration shm",
    "comm integration tcp",
    "regatta training train_faults",
    "regatta training train_chaos",
    "regatta cluster train",
    "regatta commands launch",
    "comm integration hierarchical",
    "regatta training checkpoint",
];

/// The tests that one process runs.
#[derive(Debug, PartialEq, Eq)]
pub struct TestUnit {
    /// Package, target and module, such as `regatta cluster slurm`.
    pub name: String,
    pub load: Load,
    program: TestProgram,
    /// Full names; empty for all tests of the program.
    tests: Vec<String>,
}

/// How it went.
#[derive(Debug)]
pub struct Outcome {
    /// That of the unit.
    pub name: String,
    pub duration: Duration,
    /// CPU time of all its processes, which other programs on the same cores do not change much.
    pub cpu_time: Duration,
    pub output: String,
    /// The part of the output about failed tests.
    pub failures: Option<String>,
}

/// Splits programs that consist of many modules, such that more cores have something to do.
pub fn split(programs: Vec<TestProgram>) -> Result<Vec<TestUnit>> {
    let mut units = Vec::new();
    for program in programs {
        let load = load(&program);
        if !program.has_modules {
            let name = program.name();
            units.push(TestUnit { name, load, program, tests: Vec::new() });
            continue;
        }
        for (module, tests) in by_module(&list(&program)?) {
            let name = format!("{} {module}", program.name()).trim_end().to_owned();
            units.push(TestUnit { name, load, program: program.clone(), tests });
        }
    }
    Ok(units)
}

/// In the order in which they start.
pub fn in_order(mut units: Vec<TestUnit>) -> Vec<TestUnit> {
    let rank = |unit: &TestUnit| {
        LONGEST.iter().position(|name| *name == unit.name).unwrap_or(LONGEST.len())
    };
    units.sort_by_key(|unit| (rank(unit), unit.name.clone()));
    units
}

fn load(program: &TestProgram) -> Load {
    match program.package.as_str() {
        package if SPINNING.contains(&package) => Load::Spins,
        package if COMPUTING.contains(&package) => Load::Computes,
        _ => Load::Waits,
    }
}

/// The tests of a program, one per line with its kind.
fn list(program: &TestProgram) -> Result<String> {
    let mut command = Command::new(&program.executable);
    output(command.args(["--list", "--format", "terse"]).current_dir(&program.dir))
}

/// Names of tests by the first module of their paths; none for those of the program's main file.
fn by_module(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = name.split_once("::").map_or("", |(module, _)| module);
        modules.entry(module.to_owned()).or_default().push(name.to_owned());
    }
    modules
}

impl TestUnit {
    /// The command that runs it.
    fn command(&self, isolation: Option<(&Isolation, &PrivateTmp)>) -> Command {
        let is_patient = self.load == Load::Computes;
        let program = if is_patient { Path::new("nice") } else { &self.program.executable };
        let mut command = match isolation {
            Some((isolation, tmp)) => isolation.command(tmp, program),
            None => Command::new(program),
        };
        if is_patient {
            command.args(["-n", "10"]).arg(&self.program.executable);
        }
        if !self.tests.is_empty() {
            command.arg("--exact").args(&self.tests);
        }
        command.current_dir(&self.program.dir).env("CARGO_MANIFEST_DIR", &self.program.dir);
        command
    }

    /// Runs it to its end. Its output is not printed at once: that of several would be mixed.
    pub fn run(
        &self,
        isolation: Option<&Isolation>,
        variables: &[(&str, &str)],
    ) -> Result<Outcome> {
        let start = Instant::now();
        let tmp = isolation.is_some().then(PrivateTmp::create).transpose()?;
        let mut command = self.command(isolation.zip(tmp.as_ref()));
        let (mut reader, writer) = std::io::pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .envs(variables.iter().copied());
        let child = command.spawn();
        // It holds the pipe open.
        drop(command);
        let mut child = child.with_context(|| self.program.executable.display().to_string())?;
        let mut output = Vec::new();
        reader.read_to_end(&mut output)?;
        let cpu_time = cpu_time(&child)?;
        let status = child.wait()?;
        let output = String::from_utf8_lossy(&output).into_owned();
        let failures = (!status.success()).then(|| match failures(&output) {
            Some(failures) => failures.to_owned(),
            None => format!("{status}\n{output}"),
        });
        Ok(Outcome {
            name: self.name.clone(),
            duration: start.elapsed(),
            cpu_time,
            output,
            failures,
        })
    }
}

impl Outcome {
    /// How long it took, for a person.
    pub fn times(&self) -> String {
        let [duration, cpu_time] = [self.duration, self.cpu_time].map(|time| time.as_secs_f64());
        format!("{duration:5.1} s, CPU {cpu_time:5.1} s")
    }
}

/// Waits until a child has exited, and returns the CPU time of it and of all its descendants.
fn cpu_time(child: &Child) -> Result<Duration> {
    let pid = Pid::from_child(child);
    rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let path = format!("/proc/{}/stat", child.id());
    let stat = std::fs::read_to_string(&path).context(path)?;
    let ticks: u64 = cpu_ticks(&stat).context("fields of /proc/PID/stat")?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The sum of `utime`, `stime`, `cutime` and `cstime`, the fields 14 to 17, of which the second, the name in
/// parentheses, may contain spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    (0..4).try_fold(0, |sum, _| Some(sum + fields.next()?.parse::<u64>().ok()?))
}

/// The part of a test program's output about its failed tests; none if the program crashed.
fn failures(output: &str) -> Option<&str> {
    output.find("\nfailures:\n").map(|at| &output[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str) -> TestUnit {
        let (package, target) = name.split_once(' ').unwrap();
        let program = TestProgram {
            package: package.into(),
            target: target.into(),
            executable: "/t/x".into(),
            dir: "/w".into(),
            has_modules: false,
        };
        let load = load(&program);
        TestUnit { name: name.into(), load, program, tests: Vec::new() }
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
    fn cpu_time_includes_that_of_descendants() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 60 700 800 20 0 1 0 9 10";
        assert_eq!(cpu_ticks(stat), Some(1610));
        assert_eq!(cpu_ticks("7 (a) S"), None);
        let mut child = Command::new("true").spawn().unwrap();
        assert!(cpu_time(&child).unwrap() < Duration::from_secs(1));
        assert!(child.wait().unwrap().success(), "the child is not reaped before");
    }

    #[test]
    fn tests_are_grouped_by_their_first_module() {
        let list = "launch::a: test\nat_the_root: test\nlaunch::deep::b: test\nx::c: benchmark\n";
        let expected =
            [("", vec!["at_the_root"]), ("launch", vec!["launch::a", "launch::deep::b"])];
        let expected = expected.map(|(module, tests)| {
            (module.to_owned(), tests.into_iter().map(str::to_owned).collect::<Vec<_>>())
        });
        assert_eq!(by_module(list), BTreeMap::from(expected));
    }

    #[test]
    fn the_longest_units_start_first() {
        let names = ["wire integration", LONGEST[1], "abi x", LONGEST[0]];
        let ordered = in_order(names.map(unit).into());
        let ordered: Vec<&str> = ordered.iter().map(|unit| unit.name.as_str()).collect();
        assert_eq!(ordered, [LONGEST[0], LONGEST[1], "abi x", "wire integration"]);
    }

    #[test]
    fn collectives_spin_and_kernels_compute() {
        let loads =
            ["comm integration", "cuda trace", "launch channel"].map(|name| unit(name).load);
        assert_eq!(loads, [Load::Spins, Load::Computes, Load::Waits]);
    }
}
