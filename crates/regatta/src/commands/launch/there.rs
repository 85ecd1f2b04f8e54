//! Ranks on other nodes, each with an agent that runs them.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_launch::crew::Crew;
use regatta_launch::fleet::coordinator::Fleet;
use regatta_launch::fleet::message::{RankWork, Work};
use regatta_launch::folder::RunFolder;
use regatta_launch::job::Outcome;
use regatta_launch::process::Setting;
use regatta_launch::roster::{Blame, Roster, Verdict};
use regatta_launch::signals::Caught;
use regatta_launch::started::Started;
use regatta_launch::starter::Starter;
use regatta_model::hostlist::short;
use regatta_model::{Machine, document};
use regatta_place::environment::{EnvLine, Rendezvous};
use regatta_place::rendezvous::{self, Candidate};

use super::Ground;
use super::raise::{self, Passing, Raised};
use super::ranks::{Planned, planned};
use crate::cli::LaunchArgs;
use crate::plan::{Plan, Survey};
use crate::system;

/// How long what started agents has to end when it is asked to.
const GRACE: Duration = Duration::from_secs(5);

/// The job's nodes.
pub struct There<'a> {
    args: &'a LaunchArgs,
    survey: Survey,
    run: String,
    /// All nodes, the spares last.
    hosts: Vec<String>,
    roster: Roster,
    starter: Starter,
    unset: BTreeSet<String>,
    fleet: Fleet,
    started: Started,
    /// Kept while agents may look for it.
    _marker: Passing,
    /// How many nodes the job was to have, and how many ranks each.
    wanted: usize,
    each: Option<u32>,
}

impl<'a> There<'a> {
    /// Has agents started on all nodes, and waits for them.
    pub fn up(
        args: &'a LaunchArgs,
        survey: Survey,
        run: &str,
        folder: &RunFolder,
        signals: &mut Caught,
    ) -> Result<Self> {
        let Raised { hosts, roster, starter, unset, fleet, started, marker } =
            raise::agents(args, &survey, run, folder, signals)?;
        let mut there = Self {
            args,
            survey,
            run: run.to_owned(),
            wanted: hosts.len() - args.spares as usize,
            hosts,
            roster,
            starter,
            unset,
            fleet,
            started,
            _marker: marker,
            each: None,
        };
        there.learn_machines()?;
        Ok(there)
    }

    /// Takes the nodes as they describe themselves. Those that are alike are described once.
    fn learn_machines(&mut self) -> Result<()> {
        let (mut machines, mut kinds, mut known) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut nics = HashMap::new();
        let spares = self.roster.spares().iter();
        for &node in self.roster.active().iter().chain(spares) {
            let host = &self.hosts[node];
            let machine =
                self.machine(node).with_context(|| format!("what {host} says of itself"))?;
            let key = serde_json::to_string(&machine.kind())?;
            nics.insert(short(host).to_owned(), machine.nics.clone());
            let kind = *known.entry(key).or_insert_with(|| {
                machines.push(machine);
                machines.len() - 1
            });
            kinds.insert(short(host).to_owned(), kind);
        }
        (self.survey.machines, self.survey.kinds) = (machines, kinds);
        self.survey.nics = nics;
        Ok(())
    }

    fn machine(&self, node: usize) -> Result<Machine> {
        let hello = self.fleet.hello(node as u32).context("it said nothing")?;
        Ok(document::from_json(&hello.machine)?)
    }

    /// The plan for the nodes the job has now.
    fn place(&mut self) -> Result<Plan> {
        let mut survey = self.survey.clone();
        let all = &self.survey.allocation.nodes;
        survey.allocation.nodes =
            self.roster.active().iter().filter_map(|&n| all.get(n).cloned()).collect();
        let (site, mut job) = survey.wishes(&self.args.source, &self.args.job)?;
        // With fewer nodes there are fewer ranks, as many on each as there were.
        if self.roster.active().len() < self.wanted {
            (job.ranks, job.ranks_per_node) = (None, self.each);
        }
        let plan = survey.place(site, job)?;
        let most = plan.placement.nodes.iter().map(|n| n.ranks.len() as u32).max();
        self.each = self.each.or(most);
        Ok(plan)
    }

    /// Where the ranks meet: on rank 0's node, at its own address and a port it keeps for us.
    fn meet(&self, plan: &Plan) -> Result<Rendezvous> {
        let Some((_, placed, _)) = plan.placement.find(0) else { bail!("the job has no rank 0") };
        let node = self.hosts.iter().position(|h| *h == placed.host).unwrap_or(0);
        let choices = &self.args.choices;
        let (address, address_why) = match &choices.master_addr {
            Some(address) => (address.clone(), "given by --master-addr".to_owned()),
            None if plan.placement.nodes.len() == 1 => {
                ("127.0.0.1".to_owned(), "the job has one node".to_owned())
            }
            None => {
                let name = placed.host.clone();
                let candidate = Candidate { addresses: system::resolve(&name), name };
                rendezvous::master_address(&self.machine(node)?, true, &[candidate])?
            }
        };
        let kept = self.fleet.hello(node as u32).and_then(|h| h.port);
        let (port, port_why) = match (choices.master_port, kept) {
            (Some(port), _) => (port, "given by --master-port".to_owned()),
            (None, Some(port)) => (port, format!("free on {}, and kept for this job", placed.host)),
            (None, None) => bail!("no port is free on {}: pass --master-port", placed.host),
        };
        Ok(Rendezvous { address, address_why, port, port_why })
    }

    fn work(&self, planned: &Planned, attempt: u32) -> Result<Vec<(u32, Work)>> {
        let environment = planned.environment();
        let set = |l: &&EnvLine| -> Setting { (l.variable.clone(), l.value.clone()) };
        let common: Vec<Setting> = environment.common.iter().map(set).collect();
        let folder = std::env::current_dir().context("the folder this runs in")?;
        let work = |ranks: &[u32]| {
            let one = |&rank: &u32| {
                let spec = &planned.ranks[rank as usize].spec;
                let own = environment.ranks.get(&rank).into_iter().flatten();
                RankWork {
                    rank,
                    command: (spec.command != self.args.command).then(|| spec.command.clone()),
                    env: own.map(set).collect(),
                    binding: spec.binding.clone(),
                }
            };
            Work {
                attempt,
                command: self.args.command.clone(),
                folder: folder.clone().into(),
                base: base(self.starter, &self.unset),
                without: without(self.starter),
                common: common.clone(),
                progress: self.args.hang_after.is_some(),
                ranks: ranks.iter().map(one).collect(),
            }
        };
        let position: HashMap<&str, usize> =
            self.hosts.iter().enumerate().map(|(i, h)| (h.as_str(), i)).collect();
        let nodes = planned.plan.placement.nodes.iter();
        let found = nodes.filter_map(|n| Some((*position.get(n.host.as_str())?, &n.ranks)));
        Ok(found.map(|(node, ranks)| (node as u32, work(ranks))).collect())
    }
}

/// What a rank takes from the environment of whoever launches: where the starter carries it to the
/// agents only what it was not to see itself; with ssh, which Open MPI uses too, all but what
/// belongs to the host or the login there.
fn base(starter: Starter, unset: &BTreeSet<String>) -> Vec<(OsString, OsString)> {
    const OWN: [&str; 13] = [
        "HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM",
        "TMPDIR", "USER", "_",
    ];
    const OWN_PREFIXES: [&str; 4] = ["SSH_", "XDG_", "DBUS_", "DISPLAY"];
    let own = |name: &str| OWN.contains(&name) || OWN_PREFIXES.iter().any(|p| name.starts_with(p));
    let taken = |name: &str| match starter {
        Starter::Ssh | Starter::OpenMpi => !own(name),
        _ => unset.contains(name),
    };
    std::env::vars_os().filter(|(name, _)| taken(&name.to_string_lossy())).collect()
}

/// What an agent has from its starter that would mislead its ranks: they are no ranks of the MPI
/// job that the agents are.
fn without(starter: Starter) -> Vec<String> {
    let prefixes: &[&str] = match starter {
        Starter::Pals | Starter::Hydra | Starter::OpenMpi => &[
            "PMI_",
            "PMIX_",
            "OMPI_",
            "PRTE_",
            "HYDI_",
            "MPI_LOCAL",
            "MPIR_CVAR_",
            "PALS_RANKID",
            "PALS_LOCAL_RANKID",
            "PALS_LOCAL_SIZE",
        ],
        Starter::Flux => &["FLUX_TASK_", "PMI_"],
        Starter::Srun | Starter::Ssh => &[],
    };
    prefixes.iter().map(|p| (*p).to_owned()).collect()
}

impl Ground for There<'_> {
    fn plan(&mut self, attempt: u32) -> Result<Planned> {
        let plan = self.place()?;
        let meet = self.meet(&plan)?;
        planned(self.args, plan, meet, (&self.run, attempt))
    }

    fn start(&mut self, planned: &Planned, attempt: u32) -> Result<&mut dyn Crew> {
        let work = self.work(planned, attempt)?;
        self.fleet.begin(attempt, work);
        Ok(&mut self.fleet)
    }

    fn judge(&mut self, outcome: &Outcome) -> Verdict {
        let gone: Vec<usize> = self.fleet.absent().into_iter().map(|n| n as usize).collect();
        let bad = |n: &usize| self.roster.active().contains(n) || self.roster.spares().contains(n);
        let gone: Vec<usize> = gone.into_iter().filter(bad).collect();
        let failed = outcome.result.failure.as_ref();
        let node = failed.and_then(|f| self.hosts.iter().position(|h| *h == f.host));
        match node {
            _ if !gone.is_empty() => self.roster.failed(Blame::Lost(gone)),
            Some(node) => self.roster.failed(Blame::Rank(node)),
            None => self.roster.failed(Blame::Nobody),
        }
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn end(self: Box<Self>) {
        let gone = self.fleet.absent();
        self.fleet.leave();
        raise::leave(self.started, &gone, &self.hosts, GRACE);
    }
}
