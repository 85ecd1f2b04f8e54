//! Has agents started on the job's nodes, and waits until they have connected.

use std::collections::{BTreeSet, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_launch::fleet::boot::{Boot, Times};
use regatta_launch::fleet::coordinator::Fleet;
use regatta_launch::folder::RunFolder;
use regatta_launch::roster::{Roster, Verdict};
use regatta_launch::signals::Caught;
use regatta_launch::slurm::{self, Gres};
use regatta_launch::started::Started;
use regatta_launch::starter::{Agents, Invocation, Starter};
use regatta_model::hostlist;
use regatta_model::result::Ending;
use regatta_model::units::count;
use regatta_place::rendezvous;
use regatta_wire::secret::Secret;

use super::report;
use crate::cli::{FAINT, LaunchArgs, WARNING};
use crate::plan::Survey;
use crate::shell::quote;
use crate::{output, system};

/// How long agents are waited for in silence, and how often it is then said.
const SILENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Ports that agents try to listen on.
const PORTS: usize = 8;

/// How long agents that were told to leave are waited for: longer than they wait for each other.
const LEAVE: Duration = Duration::from_secs(3);

/// Nodes with agents that have connected.
pub struct Raised {
    pub hosts: Vec<String>,
    pub roster: Roster,
    pub starter: Starter,
    /// Variables that the starter was not to see, so that agents have not, either.
    pub unset: BTreeSet<String>,
    pub fleet: Fleet,
    pub started: Started,
    /// By this file agents know the run folder.
    pub marker: Passing,
}

/// The user or the scheduler wanted an end before anything ran.
#[derive(Debug, thiserror::Error)]
#[error("ended by {0} while agents were being started")]
pub struct Interrupted(pub Ending);

/// A file that is removed when it is not needed any more, whatever happens.
pub struct Passing(PathBuf);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Passing {
    /// A file for us alone.
    fn write(path: PathBuf, text: &str) -> Result<Self> {
        let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        open()
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

/// How the agents would be started, for people.
pub fn described(args: &LaunchArgs, survey: &Survey) -> Result<String> {
    let hosts = hosts(survey)?;
    let starter = starter(args, survey)?;
    let boot = (!starter.boots_by_stdin()).then(|| PathBuf::from("RUN-FOLDER/boot"));
    let mut text = String::new();
    for invocation in invocations(args, starter, survey, &hosts, boot.as_deref())? {
        let words = std::iter::once(&invocation.program).chain(&invocation.args);
        let words: Vec<String> = words.map(|w| quote(&w.to_string_lossy())).collect();
        text.push_str(&format!("agents start by  {}\n", words.join(" ")));
    }
    Ok(text)
}

/// Starts agents on all nodes and waits for them. Nodes without one are replaced, if that is
/// possible and allowed.
pub fn agents(
    args: &LaunchArgs,
    survey: &Survey,
    run: &str,
    folder: &RunFolder,
    signals: &mut Caught,
) -> Result<Raised> {
    let hosts = hosts(survey)?;
    let mut roster =
        Roster::new(hosts.len(), args.spares as usize, args.min_nodes.map(|n| n as usize))?;
    let starter = starter(args, survey)?;
    let times = times(args);
    let secret = Secret::generate().context("random numbers for the job's secret")?;
    let mut fleet = Fleet::listen(&hosts, secret.clone(), times).context("a port for agents")?;
    let path = std::path::absolute(folder.path()).context("the run folder")?;
    let marker = Passing::write(path.join(format!("log/.{run}")), "")?;
    let root = addresses(survey).into_iter().map(|a| SocketAddr::new(a, fleet.port())).collect();
    let ports = rendezvous::ports_from(rendezvous::port(run)).take(PORTS).collect();
    let boot =
        Boot::new(run, &secret, &hosts, (args.fan_out, times), (root, ports), marker.0.clone());
    let boot = boot.to_text()?;
    let file = match starter.boots_by_stdin() {
        true => None,
        false => Some(Passing::write(path.join("boot"), &boot)?),
    };
    let file_path = file.as_ref().map(|f| f.0.as_path());
    let invocations = invocations(args, starter, survey, &hosts, file_path)?;
    let unset = invocations.iter().flat_map(|i| i.unset.clone()).collect();
    let written = invocations.iter().filter_map(|i| i.hostfile.as_ref());
    let _written: Vec<Passing> = written.map(|(path, _)| Passing(path.clone())).collect();
    let mut started = Started::spawn(invocations, &boot, &hosts)?;
    let waited = wait(&mut fleet, &mut started, &hosts, times.join, signals);
    let settled = waited.and_then(|()| settle(&fleet, &started, &mut roster, &hosts, times.join));
    if let Err(error) = settled {
        let gone = fleet.absent();
        fleet.leave();
        leave(started, &gone, &hosts, Duration::from_secs(1));
        return Err(error);
    }
    Ok(Raised { hosts, roster, starter, unset, fleet, started, marker })
}

/// Waits until agents that were told to leave have, and says of which it is not known.
pub fn leave(started: Started, gone: &[u32], hosts: &[String], grace: Duration) {
    let late = started.end(gone, LEAVE, grace);
    if !late.is_empty() {
        let names: Vec<&str> = late.iter().map(|&node| hosts[node].as_str()).collect();
        output::complain(&format!(
            "{WARNING}note:{WARNING:#} what started the agents on {} did not end with the job and \
             was ended; see whether a `regatta agent` is left there\n",
            hostlist::compress(&names)
        ));
    }
}

fn times(args: &LaunchArgs) -> Times {
    Times {
        grace: Duration::from_secs(args.grace),
        join: Duration::from_secs(args.start_within),
        lost_after: Duration::from_secs(args.lost_after),
    }
}

fn hosts(survey: &Survey) -> Result<Vec<String>> {
    if !survey.allocation.all_hosts_known() {
        bail!("the names of the job's nodes are not known here: pass --hostfile");
    }
    Ok(survey.allocation.nodes.iter().map(|n| n.host.clone()).collect())
}

fn starter(args: &LaunchArgs, survey: &Survey) -> Result<Starter> {
    if let Some(name) = args.starter {
        return Ok(name.into());
    }
    Ok(Starter::choose(survey.allocation.scheduler, system::mpiexec_version)?)
}

fn invocations(
    args: &LaunchArgs,
    starter: Starter,
    survey: &Survey,
    hosts: &[String],
    boot_file: Option<&Path>,
) -> Result<Vec<Invocation>> {
    let own = std::env::current_exe().context("the path of this program")?;
    let program = args.agent.as_deref().unwrap_or(&own);
    let ssh: Vec<String> = match &args.ssh {
        Some(text) => {
            shlex::split(text).with_context(|| format!("--ssh {text}: a quote is open"))?
        }
        None => Vec::new(),
    };
    let job = survey.env.get("SLURM_JOB_ID").filter(|_| starter == Starter::Srun);
    let job = job.and_then(system::slurm_job);
    let gres = job.map_or(Gres::Inherited, |job| slurm::whole_gres(&job, hosts));
    let agents = Agents { hosts, program, boot_file, ssh: &ssh, gres: &gres };
    Ok(starter.invocations(&agents)?)
}

/// The addresses of this host that nodes may reach it by, the fabric's first.
fn addresses(survey: &Survey) -> Vec<IpAddr> {
    let machine = &survey.machines[0];
    let own = rendezvous::master_address(machine, true, &[]).ok();
    let fabric = own.and_then(|(address, _)| address.parse().ok());
    let others = machine.nics.iter().flat_map(|nic| nic.addresses.iter().map(|a| a.address));
    let others = others.filter(|a| !a.is_loopback() && !is_link_local(a));
    let mut all: Vec<IpAddr> = Vec::new();
    for address in fabric.into_iter().chain(others).chain(system::resolve(&machine.host)) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all.sort_by_key(|a| a.is_ipv6());
    if all.is_empty() {
        all.push(Ipv4Addr::LOCALHOST.into());
    }
    all
}

/// Such an address means something only together with an interface.
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Waits until all agents have connected, those that have not cannot any more, or time is up.
fn wait(
    fleet: &mut Fleet,
    started: &mut Started,
    hosts: &[String],
    limit: Duration,
    signals: &mut Caught,
) -> Result<()> {
    let start = Instant::now();
    let mut said = start + SILENCE.0 - SILENCE.1;
    let mut over = vec![false; hosts.len()];
    loop {
        let absent = fleet.absent();
        if absent.iter().all(|&n| over[n as usize]) || start.elapsed() >= limit {
            return Ok(());
        }
        if let Some(signal) = signals.end() {
            return Err(Interrupted(Ending::Signal(signal)).into());
        }
        fleet.poll(Duration::from_millis(50));
        for (range, _) in started.ended() {
            over[range].fill(true);
        }
        if said.elapsed() >= SILENCE.1 {
            said = Instant::now();
            let names: Vec<&str> = absent.iter().map(|&n| hosts[n as usize].as_str()).collect();
            let (some, all) = (names.len(), count(hosts.len(), "node"));
            let names = hostlist::compress(&names);
            output::complain(&format!(
                "{FAINT}waiting for agents on {some} of {all}: {names}{FAINT:#}\n"
            ));
        }
    }
}

/// Goes on without nodes that have no agent, or says what is known of them.
fn settle(
    fleet: &Fleet,
    started: &Started,
    roster: &mut Roster,
    hosts: &[String],
    limit: Duration,
) -> Result<()> {
    let absent: Vec<usize> = fleet.absent().into_iter().map(|n| n as usize).collect();
    if absent.is_empty() {
        return Ok(());
    }
    let verdict = roster.missing(&absent, "its agent never connected");
    let Verdict::GiveUp(_) = verdict else {
        report::verdict(&verdict, hosts);
        return Ok(());
    };
    let names: Vec<&str> = absent.iter().map(|&n| hosts[n].as_str()).collect();
    let mut said: Vec<String> = absent.iter().flat_map(|&n| started.said(n)).collect();
    // One starter speaks for many hosts.
    let mut seen = HashSet::new();
    said.retain(|line| seen.insert(line.clone()));
    said.truncate(20);
    let said = match said.is_empty() {
        true => format!(
            "nothing was heard for {} s: can they reach this host by TCP? (--start-within waits \
             longer)",
            limit.as_secs()
        ),
        false => format!("what started them said: {}", said.join(" | ")),
    };
    bail!("no agent connected from {}; {said}", hostlist::compress(&names))
}
