//! The report: facts of each rank, groups of ranks, findings and a verdict.

use std::collections::{BTreeMap, BTreeSet};

use regatta_model::document::Document;
use regatta_model::hostlist;
use regatta_model::units::{format_ranges, pluralize};
use serde::{Deserialize, Serialize};

use super::fabric_plugin;
use super::judge;
use super::log::{Device, NetLog, Process};
use super::requirement::{Requirement, RequirementResult};
use super::transport::{self, Direction, Transport, TransportKind};

/// Most characters of a list of ranks in a sentence.
const MAX_RANK_LIST: usize = 60;

/// The network that a job used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetReport {
    /// How good the network is, and why.
    pub level: Level,
    /// The verdict in one sentence.
    pub verdict: String,
    /// Result of the requirement, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirement: Option<RequirementResult>,
    /// Findings, the worst first.
    pub findings: Vec<Finding>,
    /// Ranks with equal transports, the largest group first.
    pub groups: Vec<RankGroup>,
    /// Size of the largest communicator, if it is logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ranks: Option<u32>,
    /// Number of nodes: that of the largest communicator, else that of the host names.
    pub nodes: u32,
    /// Versions of NCCL or RCCL.
    pub libraries: Vec<String>,
    /// Each rank.
    pub ranks: Vec<RankReport>,
    /// Files read.
    pub sources: Vec<String>,
    /// What was read.
    #[serde(flatten)]
    pub counts: LineCounts,
}

impl NetReport {
    /// Ranks by a value that they may have.
    pub fn by_value(
        &self,
        value: impl Fn(&RankReport) -> Option<String>,
    ) -> BTreeMap<String, Vec<&RankReport>> {
        let mut by_value: BTreeMap<String, Vec<&RankReport>> = BTreeMap::new();
        for rank in &self.ranks {
            if let Some(value) = value(rank) {
                by_value.entry(value).or_default().push(rank);
            }
        }
        by_value
    }
}

/// What was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCounts {
    /// Lines.
    pub lines: u64,
    /// Records of NCCL or RCCL.
    pub records: u64,
    /// Records whose end is missing.
    pub truncated_records: u64,
    /// Records of a process that is unknown because another record precedes its host, or that exceeds the
    /// limits.
    pub unattributed_records: u64,
}

impl Document for NetReport {
    const KIND: &'static str = "net-log";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta net-log --json";
}

/// Severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The network is right.
    Ok,
    /// Worth knowing.
    Note,
    /// The log does not say which network is used.
    Unknown,
    /// Slower than it could be, or likely to be.
    Warning,
    /// The wrong network.
    Failure,
}

/// Something to know about the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// Name for scripts: `tcp-network`.
    pub code: String,
    /// What is wrong, with ranks and hosts.
    pub message: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Ranks that are concerned, as `0-7,12`; empty: all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ranks: String,
}

/// Ranks with equal transports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankGroup {
    /// Ranks, as `0-7,12`.
    pub ranks: String,
    /// Number of ranks.
    pub count: u32,
    /// Host list.
    pub hosts: String,
    /// Networks between nodes, as `NET/AWS Libfabric`; empty if the ranks have no such channel.
    pub networks: Vec<String>,
    /// Transports inside the node, as `P2P/IPC`.
    pub local: Vec<String>,
    /// Use of GPUDirect RDMA.
    pub gdr: Gdr,
}

/// Use of GPUDirect RDMA by the channels between nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gdr {
    /// All channels.
    On,
    /// Only channels that receive.
    ReceiveOnly,
    /// Some channels.
    Partial,
    /// No channel.
    Off,
    /// Not logged, or no channel between nodes.
    #[default]
    Unknown,
}

impl Gdr {
    /// As in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::ReceiveOnly => "receive only",
            Self::Partial => "on some channels",
            Self::Off => "off",
            Self::Unknown => "-",
        }
    }
}

/// One rank: a GPU of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReport {
    /// `None` if the log does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Name of its host.
    pub host: String,
    /// ID of its process.
    pub pid: u32,
    /// Number of the GPU in the process.
    pub device: u32,
    /// File of its log.
    pub source: String,
    /// Version of NCCL or RCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Network that the communicator uses, by its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Its network plug-in.
    pub plugin: PluginReport,
    /// Use of GPUDirect RDMA.
    pub gdr: Gdr,
    /// Whether rings, trees or channels are connected.
    pub connected: bool,
    /// Transports with the number of channels.
    pub transports: Vec<TransportReport>,
    /// Interfaces of the socket network, by their index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sockets: BTreeMap<u32, String>,
    /// InfiniBand and RoCE devices, as `mlx5_0 (IB)`, by their index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ib_devices: BTreeMap<u32, String>,
    /// Interface of the bootstrap connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<String>,
    /// NCCL variables that the library has read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// The first warnings of the library.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether no InfiniBand device was found.
    #[serde(default)]
    pub ib_missing: bool,
    /// Why GPUDirect RDMA is disabled for a pair of GPU and NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdr_disabled: Option<String>,
}

/// The network plug-in of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginReport {
    /// Name of the plug-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version of its interface (`v8`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Its library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Name and version of the libfabric plug-in (`aws-ofi-nccl 1.14.0`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Version of libfabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libfabric: Option<String>,
    /// Provider of libfabric (`cxi`, `efa`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Libraries that were not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_found: Option<String>,
    /// Why a plug-in that was found is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Names of the NICs that the plug-in uses, by their number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<String>,
    /// Why our plug-in, which is loaded, leaves the network to NCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_used: Option<String>,
}

impl PluginReport {
    /// Whether a plug-in is loaded.
    pub fn is_loaded(&self) -> bool {
        self.name.is_some() || self.package.is_some() && self.failure.is_none()
    }

    /// The plug-in in a few words.
    pub fn describe(&self) -> Option<String> {
        let name = self.name.as_ref().or(self.package.as_ref())?;
        let package = self.package.iter().filter(|package| *package != name);
        let provider = self.provider.iter().map(|p| format!("provider {p}"));
        let libfabric = self.libfabric.iter().map(|v| format!("libfabric {v}"));
        let api = self.api.iter().map(|v| format!("API {v}"));
        let details: Vec<String> =
            package.cloned().chain(libfabric).chain(provider).chain(api).collect();
        Some(match details.is_empty() {
            true => name.clone(),
            false => format!("{name} ({})", details.join(", ")),
        })
    }
}

/// A transport and its channels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportReport {
    /// The transport.
    #[serde(flatten)]
    pub transport: Transport,
    /// End of its channels, if it is logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Number of channels.
    pub channels: u64,
    /// Interface or NIC, if the log has its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<String>,
    /// Line of the first one in `source`.
    pub line: u64,
}

impl RankReport {
    /// `rank 3 on nid001`, or host and process ID.
    pub fn name(&self) -> String {
        match (self.rank, self.host.as_str()) {
            (Some(rank), "") => format!("rank {rank}"),
            (Some(rank), host) => format!("rank {rank} on {host}"),
            (None, "") => "a process without a name".to_owned(),
            (None, host) => format!("process {} on {host}", self.pid),
        }
    }

    /// Transports between nodes.
    pub fn net_transports(&self) -> impl Iterator<Item = &TransportReport> {
        let is_net = |t: &&TransportReport| {
            matches!(t.transport.kind, TransportKind::Net | TransportKind::CollNet)
        };
        self.transports.iter().filter(is_net)
    }

    /// Names of the networks that the channels between nodes use, without collective networks.
    pub fn networks_used(&self) -> BTreeSet<&str> {
        let nets = self.transports.iter().filter(|t| t.transport.kind == TransportKind::Net);
        nets.map(|t| t.transport.name.as_str()).collect()
    }

    fn new(source: &str, process: &Process, device: &Device, rank: Option<u32>) -> Self {
        let facts = process.facts.clone();
        let mut report = Self {
            rank,
            device: device.number,
            source: source.to_owned(),
            connected: device.connected,
            bootstrap: facts.bootstrap.or_else(|| process.out_of_band.clone()),
            ..facts
        };
        report.transports = transports(&report, device);
        report.gdr = gdr(&report);
        report
    }
}

/// The transports of a device: those that differ only in the proxy, or in the details of lines that are
/// cut off, are one.
fn transports(rank: &RankReport, device: &Device) -> Vec<TransportReport> {
    let mut merged: BTreeMap<(Transport, Option<Direction>), (u64, u64)> = BTreeMap::new();
    for raw in &device.transports {
        let Some(transport) = transport::parse(&raw.via, raw.complete) else { continue };
        let entry = merged.entry((transport, raw.direction)).or_insert((0, raw.line));
        entry.0 += raw.channels;
        entry.1 = entry.1.min(raw.line);
    }
    let report = |((transport, direction), (channels, line)): ((Transport, _), _)| {
        let names = match transport.name.as_str() {
            "Socket" => Some(&rank.sockets),
            "IB" => Some(&rank.ib_devices),
            _ => None,
        };
        let of_plugin = || match transport.name.as_str() {
            fabric_plugin::NETWORK => rank.plugin.nics.get(transport.device? as usize).cloned(),
            _ => None,
        };
        let nic = transport.device.and_then(|at| names?.get(&at).cloned()).or_else(of_plugin);
        TransportReport { transport, direction, channels, nic, line }
    };
    merged.into_iter().map(report).collect()
}

fn gdr(rank: &RankReport) -> Gdr {
    let has = |direction: Direction, value: bool| {
        let mut nets = rank.net_transports();
        nets.any(|t| t.direction == Some(direction) && t.transport.gdr == Some(value))
    };
    let any = |value: bool| rank.net_transports().any(|t| t.transport.gdr == Some(value));
    let receives_only = !has(Direction::Receive, false) && !has(Direction::Send, true);
    match (any(true), any(false)) {
        (true, false) => Gdr::On,
        (false, true) => Gdr::Off,
        (true, true) if receives_only => Gdr::ReceiveOnly,
        (true, true) => Gdr::Partial,
        (false, false) => Gdr::Unknown,
    }
}

/// Reports on what has been read so far.
pub fn report(log: &NetLog, requirement: Option<&Requirement>) -> NetReport {
    let ranks = rank_reports(log);
    let logged_nodes = log.devices().filter_map(|device| device.nodes).max();
    let hosts: BTreeSet<&str> =
        ranks.iter().map(|r| r.host.as_str()).filter(|host| !host.is_empty()).collect();
    let own = ranks.iter().filter_map(|rank| rank.library.clone());
    let libraries: BTreeSet<String> = own.chain(log.versions.iter().cloned()).collect();
    let mut report = NetReport {
        level: Level::Unknown,
        verdict: String::new(),
        requirement: None,
        findings: Vec::new(),
        groups: groups(&ranks),
        expected_ranks: log.progress().1,
        nodes: logged_nodes.unwrap_or(hosts.len() as u32).max(1),
        libraries: libraries.into_iter().collect(),
        ranks,
        sources: log.sources.iter().map(|source| source.name.clone()).collect(),
        counts: log.counts,
    };
    report.findings = judge::findings(&report);
    (report.level, report.verdict) = judge::verdict(&report);
    report.requirement = requirement.map(|requirement| requirement.check(&report));
    report
}

impl NetLog {
    /// Number of ranks whose channels are connected, and the size of the largest communicator.
    pub fn progress(&self) -> (usize, Option<u32>) {
        let sizes = self.devices().filter_map(|device| device.communicator).map(|(_, size)| size);
        (self.devices().filter(|device| device.connected).count(), sizes.max())
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        self.processes.iter().flat_map(|process| &process.devices)
    }
}

fn rank_reports(log: &NetLog) -> Vec<RankReport> {
    let mut found: Vec<(&Process, &Device)> = Vec::new();
    for process in &log.processes {
        let is_rank = |device: &&Device| {
            device.communicator.is_some() || !device.transports.is_empty() || device.connected
        };
        let before = found.len();
        found.extend(process.devices.iter().filter(is_rank).map(|device| (process, device)));
        // A process that has not created a communicator yet.
        if found.len() == before {
            found.extend(process.devices.first().map(|device| (process, device)));
        }
    }
    let label = |process: &Process| log.sources[process.source].rank.or(process.label);
    let labels: BTreeSet<u32> = found.iter().filter_map(|(process, _)| label(process)).collect();
    let labels_are_ranks = labels.len() == found.len();
    let number = |process: &Process, device: &Device| match labels_are_ranks {
        true => label(process),
        false => device.communicator.map(|(rank, _)| rank).or(device.channel_rank),
    };
    let report = |&(process, device): &(&Process, &Device)| {
        let source = &log.sources[process.source].name;
        RankReport::new(source, process, device, number(process, device))
    };
    let mut reports: Vec<RankReport> = found.iter().map(report).collect();
    let key = |r: &RankReport| (r.rank.unwrap_or(u32::MAX), r.host.clone(), r.pid, r.device);
    reports.sort_by_cached_key(key);
    reports
}

fn groups(ranks: &[RankReport]) -> Vec<RankGroup> {
    type Key = (Vec<String>, Vec<String>, Gdr);
    let mut groups: BTreeMap<Key, Vec<&RankReport>> = BTreeMap::new();
    for rank in ranks.iter().filter(|rank| !rank.transports.is_empty()) {
        let names = |is_net: bool| {
            let kinds = [TransportKind::Net, TransportKind::CollNet];
            let of_kind = rank.transports.iter().map(|t| &t.transport);
            let of_kind = of_kind.filter(|t| kinds.contains(&t.kind) == is_net);
            let names: BTreeSet<String> = of_kind.map(ToString::to_string).collect();
            names.into_iter().collect::<Vec<String>>()
        };
        groups.entry((names(true), names(false), rank.gdr)).or_default().push(rank);
    }
    let group = |((networks, local, gdr), members): (Key, Vec<&RankReport>)| RankGroup {
        ranks: rank_list(&members),
        count: members.len() as u32,
        hosts: host_list(&members),
        networks,
        local,
        gdr,
    };
    let mut groups: Vec<RankGroup> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}

/// Hosts of ranks, as a host list.
pub fn host_list(ranks: &[&RankReport]) -> String {
    let hosts: BTreeSet<&str> =
        ranks.iter().map(|r| r.host.as_str()).filter(|host| !host.is_empty()).collect();
    hostlist::compress(&hosts.into_iter().collect::<Vec<_>>())
}

/// Numbers of ranks, as `0-7,12`. Ranks without a number are counted.
pub fn rank_list(ranks: &[&RankReport]) -> String {
    let numbers: Vec<u32> = ranks.iter().filter_map(|rank| rank.rank).collect();
    let known = (!numbers.is_empty()).then(|| format_ranges(&numbers));
    let unknown = ranks.iter().filter(|rank| rank.rank.is_none()).count();
    let unknown = (unknown > 0).then(|| format!("{unknown} without a number"));
    known.into_iter().chain(unknown).collect::<Vec<_>>().join(",")
}

/// Ranks in a sentence: `rank 3 on nid001`, `ranks 0-7 on nid[001-002]`, `all 16 ranks`.
pub fn describe_ranks(ranks: &[&RankReport], of: usize) -> String {
    match ranks {
        [rank] if of > 1 => rank.name(),
        _ if ranks.len() == of => match of {
            1 => "the only rank".to_owned(),
            2 => "both ranks".to_owned(),
            _ => format!("all {of} ranks"),
        },
        _ => {
            let short = |text: String, count: String| match text.len() > MAX_RANK_LIST {
                true => count,
                false => text,
            };
            let list = rank_list(ranks);
            let list = match list.len() > MAX_RANK_LIST {
                true => pluralize(ranks.len(), "rank"),
                false => format!("ranks {list}"),
            };
            let hosts: BTreeSet<&str> = ranks.iter().map(|r| r.host.as_str()).collect();
            match short(host_list(ranks), pluralize(hosts.len(), "host")) {
                hosts if hosts.is_empty() => list,
                hosts => format!("{list} on {hosts}"),
            }
        }
    }
}
