//! Long campaigns, one per capability: what the tests do once or for seconds, at full count. The output of a
//! complete campaign is kept in `bench/results`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::steps::{self, cargo};

/// Where results are kept.
const RESULTS: &str = "bench/results";

/// The name of the campaign that runs the fuzz targets.
const FUZZ: &str = "fuzz";

/// One capability at full count.
struct Campaign {
    name: &'static str,
    about: &'static str,
    /// Arguments of `cargo test`.
    arguments: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// Number of cases, of those that are generated from seeds.
    cases: Option<u64>,
}

const CLUSTER: (&str, &str) = ("REGATTA_REQUIRE_CLUSTER", "1");

const CAMPAIGNS: [Campaign; 11] = [
    Campaign {
        name: "launch-chaos",
        about: "faults in launched jobs on clusters of up to 40 nodes: killed and hung processes, pauses, \
                suspended jobs, duplicate signals, cut links, crashed nodes, full disks",
        // A release build, because a rank writes 1 GiB.
        arguments: "--release -p regatta --test cluster -- --nocapture injected_faults",
        variables: &[CLUSTER, ("REGATTA_CHAOS_MIB", "1024")],
        cases: Some(300),
    },
    Campaign {
        name: "comm-chaos",
        about: "faults in jobs running collectives, and in a tenth as many on a network: killed, stopped \
                and paused ranks, mismatching calls, broken links",
        arguments: "-p regatta-comm --test integration -- --nocapture chaos::",
        variables: &[CLUSTER],
        cases: Some(300),
    },
    Campaign {
        name: "train-chaos",
        about: "faults in training runs, whose losses are compared: kills, signals, pauses, hung ranks, \
                damaged checkpoints",
        arguments: "-p regatta --test training -- --nocapture train_chaos::",
        variables: &[],
        cases: Some(300),
    },
    Campaign {
        name: "collectives",
        about: "every combination of collective, type, reduction, root, counts and size, on all communicators, \
                and all schedules of 1000 ranks",
        arguments: "-p regatta-comm --test integration -- --nocapture sampled_combinations for_1000_ranks",
        variables: &[("REGATTA_TEST_CASES", "1000000")],
        cases: None,
    },
    Campaign {
        name: "parallel-layouts",
        about: "every parallel layout: losses of a single rank, measured memory, ranks killed in each phase",
        arguments: "--workspace --test integration --test training --test cluster -- --nocapture parallel \
                    cost_model_measured gpu_arena",
        variables: &[CLUSTER, ("REGATTA_TEST_CASES", "64")],
        cases: None,
    },
    Campaign {
        name: "conformance",
        about: "every operation of a device on fake GPUs, and every kernel compiled for every AMD architecture",
        arguments: "-p regatta-kernels-cuda --lib --test integration -- --nocapture conformance \
                    hip_compilation",
        variables: &[("REGATTA_TEST_CASES", "64")],
        cases: None,
    },
    Campaign {
        name: "net-plugin",
        about: "gigabytes through the network plug-in, over every provider and interface version",
        arguments: "--release -p regatta-net -- --nocapture --ignored soak",
        variables: &[("REGATTA_NET_SOAK_GB", "4"), ("REGATTA_REQUIRE_LIBFABRIC", "1")],
        cases: None,
    },
    Campaign {
        name: "doctor",
        about: "a hundred diagnoses of a test cluster",
        arguments: "-p regatta --test cluster -- --nocapture doctor::",
        variables: &[CLUSTER, ("REGATTA_DOCTOR_RUNS", "100")],
        cases: None,
    },
    Campaign {
        name: "bench-baseline",
        about: "a hundred comparisons of a benchmark with its baseline on a test cluster",
        arguments: "-p regatta --test cluster -- --nocapture bench::",
        variables: &[CLUSTER, ("REGATTA_TEST_CASES", "100")],
        cases: None,
    },
    Campaign {
        name: "gpu-train",
        about: "training on one GPU: layouts, traffic, determinism, offload, plug-ins, faults",
        arguments: "--release -p regatta --test gpu_acceptance -- --nocapture",
        variables: &[("REGATTA_REQUIRE_GPU", "1")],
        cases: None,
    },
    Campaign {
        name: FUZZ,
        about: "every fuzz target for ten minutes (needs cargo-fuzz)",
        arguments: "",
        variables: &[],
        cases: None,
    },
];

/// What of a campaign is to run.
#[derive(Debug, PartialEq, Eq)]
struct Selection {
    /// Fewer or more cases than usual; then the output is not kept.
    cases: Option<u64>,
    /// The first seed.
    seed: Option<u64>,
}

/// The help of `cargo xtask accept`: all campaigns.
fn list() -> String {
    CAMPAIGNS.iter().fold(String::new(), |mut text, campaign| {
        let cases = campaign.cases.map_or_else(String::new, |cases| format!(" ({cases} cases)"));
        let _ = writeln!(text, "{:<15} {}{cases}", campaign.name, campaign.about);
        text
    })
}

/// Runs the campaign that the arguments name, or lists all.
pub fn run(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let Some(name) = arguments.next() else {
        print!("{}", list());
        return Ok(());
    };
    let campaign = CAMPAIGNS.iter().find(|campaign| campaign.name == name);
    let campaign =
        campaign.with_context(|| format!("no campaign {name}; there are:\n{}", list()))?;
    let selection = Selection::parse(campaign, arguments)?;
    let commands = campaign.commands(&selection)?;
    let mut kept = match selection.cases {
        Some(_) => None,
        None => Some(create(campaign)?),
    };
    for command in commands {
        run_kept(command, kept.as_mut())?;
    }
    Ok(())
}

impl Selection {
    fn parse(campaign: &Campaign, mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut selection = Self { cases: None, seed: None };
        while let Some(option) = words.next() {
            let value = words.next().and_then(|text| text.parse().ok());
            match (option.as_str(), value) {
                ("--cases", Some(_)) => selection.cases = value,
                ("--seed", Some(_)) => selection.seed = value,
                _ => bail!("{option}: expected --cases N or --seed S"),
            }
            ensure!(campaign.cases.is_some(), "{} has no {option}", campaign.name);
        }
        Ok(selection)
    }
}

impl Campaign {
    fn commands(&self, selection: &Selection) -> Result<Vec<Command>> {
        if self.name == FUZZ {
            return fuzz();
        }
        let mut test = cargo();
        test.arg("test").args(self.arguments.split(' ')).envs(self.variables.iter().copied());
        if let Some(cases) = self.cases {
            let seed = selection.seed.unwrap_or_else(new_seed);
            test.env("REGATTA_CHAOS_CASES", selection.cases.unwrap_or(cases).to_string());
            test.env("REGATTA_CHAOS_SEED", seed.to_string());
        }
        Ok(vec![test])
    }
}

/// A new seed: the time.
fn new_seed() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_secs())
}

/// One command per fuzz target. The sanitizers need a nightly compiler or `RUSTC_BOOTSTRAP`.
fn fuzz() -> Result<Vec<Command>> {
    let targets = fs::read_dir("fuzz/fuzz_targets").context("fuzz/fuzz_targets")?;
    let mut names: Vec<String> = targets
        .flatten()
        .filter_map(|t| Some(Path::new(&t.file_name()).file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names.iter().map(|name| fuzz_target(name)).collect()
}

fn fuzz_target(name: &str) -> Result<Command> {
    let found = format!("fuzz/artifacts/found/{name}");
    fs::create_dir_all(&found).with_context(|| found.clone())?;
    let mut fuzz = cargo();
    fuzz.args(["fuzz", "run", name, &found, &format!("fuzz/corpus/{name}"), "--"]);
    fuzz.args(["-max_total_time=600", "-timeout=10", "-rss_limit_mb=2048", "-max_len=8192"]);
    // Targets without keywords have no dictionary.
    let dictionary = format!("fuzz/dictionaries/{name}.dict");
    if Path::new(&dictionary).exists() {
        fuzz.arg(format!("-dict={dictionary}"));
    }
    fuzz.env("RUSTC_BOOTSTRAP", "1");
    Ok(fuzz)
}

/// The file of a campaign's output, with its circumstances at its head.
fn create(campaign: &Campaign) -> Result<File> {
    fs::create_dir_all(RESULTS).context(RESULTS)?;
    let path = Path::new(RESULTS).join(format!("{}.txt", campaign.name));
    let mut file = File::create(&path).with_context(|| path.display().to_string())?;
    let changed = if output("git", "status --porcelain")?.is_empty() { "" } else { " and changes" };
    writeln!(file, "command: cargo xtask accept {}", campaign.name)?;
    writeln!(file, "commit:  {}{changed}", output("git", "rev-parse HEAD")?)?;
    writeln!(file, "date:    {}", output("date", "-u +%FT%TZ")?)?;
    writeln!(file, "machine: {}\n", machine()?)?;
    Ok(file)
}

/// Kernel, cores, processor and memory.
fn machine() -> Result<String> {
    let value = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (model, memory) =
        (value("/proc/cpuinfo", "model name"), value("/proc/meminfo", "MemTotal"));
    Ok(format!("{}, {cores} cores, {model}, {memory}", output("uname", "-srm")?))
}

fn output(program: &str, arguments: &str) -> Result<String> {
    Ok(steps::output(Command::new(program).args(arguments.split(' ')))?.trim().to_owned())
}

/// Runs a command, and writes its output to the terminal and to a file.
fn run_kept(mut command: Command, mut kept: Option<&mut File>) -> Result<()> {
    let start = Instant::now();
    let (mut reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    // It would keep the pipe open.
    drop(command);
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = reader.read(&mut bytes)?;
        if count == 0 {
            break;
        }
        std::io::stdout().write_all(&bytes[..count])?;
        if let Some(file) = &mut kept {
            file.write_all(&bytes[..count])?;
        }
    }
    let status = child.wait()?;
    let end = format!("{status} after {:.0} s", start.elapsed().as_secs_f64());
    if let Some(file) = kept {
        writeln!(file, "\n{end}\n")?;
    }
    ensure!(status.success(), "{end}");
    println!("xtask: {end}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(name: &str) -> &'static Campaign {
        CAMPAIGNS.iter().find(|campaign| campaign.name == name).unwrap()
    }

    fn parse(name: &str, words: &str) -> Result<Selection> {
        Selection::parse(campaign(name), words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn cases_and_seeds_are_selected_where_there_are_any() {
        let one = Selection { cases: Some(1), seed: Some(7) };
        assert_eq!(parse("train-chaos", "--cases 1 --seed 7").unwrap(), one);
        assert_eq!(parse("doctor", "").unwrap(), Selection { cases: None, seed: None });
        for (name, words) in [("doctor", "--cases 1"), ("comm-chaos", "--cases"), (FUZZ, "-x")] {
            assert!(parse(name, words).is_err(), "{name} {words}");
        }
    }

    #[test]
    fn a_campaign_has_its_count_unless_another_is_given() {
        let cases = |words: &str| {
            let campaign = campaign("comm-chaos");
            let commands = campaign.commands(&parse("comm-chaos", words).unwrap()).unwrap();
            let mut variables = commands[0].get_envs();
            let found = variables.find(|(name, _)| *name == "REGATTA_CHAOS_CASES").unwrap();
            found.1.unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!([cases(""), cases("--cases 5")], ["300", "5"]);
    }

    #[test]
    fn output_is_kept_and_a_failure_is_reported() {
        let path = std::env::temp_dir().join(format!("regatta-accept-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let ended = run_kept(command, Some(&mut file));
        assert!(ended.unwrap_err().to_string().contains("exit status: 3"));
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(text.starts_with("out\nerr\n") && text.contains("exit status: 3"), "{text}");
    }
}
