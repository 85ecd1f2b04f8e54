//! Judges the facts: findings with their fixes, and the verdict.

use std::collections::BTreeSet;

use regatta_model::units::{pluralize, ranges};

use super::fabric_plugin;
use super::interface::{self, InterfaceKind};
use super::report::{Finding, Gdr, Level, NetReport, RankReport, describe_ranks, rank_list};
use super::requirement::RequiredNetwork;
use super::transport::TransportKind;

/// Fix of a log without records.
pub const NO_RECORDS_FIX: &str = "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET,ENV in the job, or \
                                  run it with `regatta launch --check-net`";
/// Most warnings of the library in a report.
const MAX_WARNINGS: usize = 3;
/// Most elements of a list in a sentence.
const MAX_NAMES: usize = 8;

/// All findings, the worst first.
pub fn findings(report: &NetReport) -> Vec<Finding> {
    let mut found = Vec::new();
    if report.ranks.is_empty() {
        let message = "no record of NCCL or RCCL in the log".to_owned();
        return vec![finding(Level::Unknown, "no-records", message, NO_RECORDS_FIX)];
    }
    found.extend(tcp_network(report));
    found.extend(tcp_provider(report));
    found.extend(socket_interfaces(report));
    found.extend(unused_plugin(report));
    found.extend(plugin(report));
    found.extend(gdr(report));
    found.extend(differing_ranks(report));
    found.extend(missing_ranks(report));
    found.extend(no_channels(report));
    found.extend(bootstrap(report));
    found.extend(shared_memory(report));
    found.extend(library_warnings(report));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found
}

fn finding(level: Level, code: &str, message: String, fix: impl Into<String>) -> Finding {
    let fix = Some(fix.into()).filter(|fix| !fix.is_empty());
    Finding { level, code: code.to_owned(), message, fix, ranks: String::new() }
}

/// The ranks that a finding is about: at least one.
struct Concerned<'a> {
    report: &'a NetReport,
    first: &'a RankReport,
    ranks: Vec<&'a RankReport>,
}

impl<'a> Concerned<'a> {
    /// These ranks, if there are any.
    fn new(report: &'a NetReport, ranks: Vec<&'a RankReport>) -> Option<Self> {
        Some(Self { report, first: *ranks.first()?, ranks })
    }

    /// The ranks with a property, if there are any.
    fn with(report: &'a NetReport, is: impl Fn(&RankReport) -> bool) -> Option<Self> {
        Self::new(report, report.ranks.iter().filter(|rank| is(rank)).collect())
    }

    /// The level of a failure if a rank has a property.
    fn failure_if(&self, is: impl Fn(&RankReport) -> bool, otherwise: Level) -> Level {
        if self.ranks.iter().any(|rank| is(rank)) { Level::Failure } else { otherwise }
    }

    /// The ranks in a sentence.
    fn who(&self) -> String {
        describe_ranks(&self.ranks, self.report.ranks.len())
    }

    /// A finding with the ranks, unless these are all.
    fn finding(
        &self,
        level: Level,
        code: &str,
        message: String,
        fix: impl Into<String>,
    ) -> Finding {
        let is_all = self.ranks.len() >= self.report.ranks.len();
        let ranks = if is_all { String::new() } else { rank_list(&self.ranks) };
        Finding { ranks, ..finding(level, code, message, fix) }
    }
}

/// Level and sentence of the verdict.
pub fn verdict(report: &NetReport) -> (Level, String) {
    let size = size(report);
    if let Some(worst) = report.findings.iter().find(|f| f.level > Level::Note) {
        return (worst.level, worst.message.clone());
    }
    let networks: BTreeSet<&str> =
        report.ranks.iter().flat_map(|rank| rank.networks_used()).collect();
    let Some(name) = networks.into_iter().next() else {
        let local: BTreeSet<String> = report.groups.iter().flat_map(|g| g.local.clone()).collect();
        let by = local.into_iter().collect::<Vec<_>>().join(", ");
        return (
            Level::Ok,
            format!(
                "{size} on one node communicate{} by {by}; no network is used",
                s_of(report.ranks.len())
            ),
        );
    };
    let provider = report.ranks.iter().find_map(|rank| rank.plugin.provider.as_deref());
    let provider = provider.map_or(String::new(), |provider| format!(" ({provider})"));
    let is_known = report.ranks.iter().any(|rank| rank.gdr == Gdr::On);
    let gdr = if is_known { " with GPUDirect RDMA" } else { "" };
    let s = s_of(report.ranks.len());
    (Level::Ok, format!("{size} use{s} NET/{name}{provider}{gdr}"))
}

/// Ending of the verb of this many ranks.
fn s_of(ranks: usize) -> &'static str {
    if ranks == 1 { "s" } else { "" }
}

fn size(report: &NetReport) -> String {
    let nodes = match report.nodes {
        0 | 1 => String::new(),
        nodes => format!(" on {nodes} nodes"),
    };
    format!("{}{nodes}", pluralize(report.ranks.len(), "rank"))
}

fn uses_tcp(rank: &RankReport) -> bool {
    let used = rank.networks_used();
    used.contains("Socket") || used.is_empty() && rank.network.as_deref() == Some("Socket")
}

/// TCP between nodes is wrong wherever a faster network is present, and a warning elsewhere.
fn tcp_network(report: &NetReport) -> Option<Finding> {
    let tcp = Concerned::with(report, |rank| rank.networks_used().contains("Socket"))?;
    let level = tcp.failure_if(has_fast_network, Level::Warning);
    let (who, s) = (tcp.who(), s_of(tcp.ranks.len()));
    let message = format!("{who} use{s} TCP between nodes (NET/Socket), not an RDMA network");
    Some(tcp.finding(level, "tcp-network", message, network_fix(tcp.first, report, None)))
}

/// The libfabric plug-in is used, but libfabric sends over TCP.
fn tcp_provider(report: &NetReport) -> Option<Finding> {
    let is_tcp = |rank: &RankReport| rank.plugin.provider.as_deref().is_some_and(is_tcp_provider);
    let tcp = Concerned::with(report, is_tcp)?;
    let provider = tcp.first.plugin.provider.as_deref()?;
    let level = tcp.failure_if(has_fabric, Level::Warning);
    let (who, s) = (tcp.who(), s_of(tcp.ranks.len()));
    let message = format!("{who} use{s} the plug-in over TCP: libfabric's provider is {provider}");
    let is_ours = tcp.first.plugin.name.as_deref() == Some(fabric_plugin::NETWORK);
    let variable = if is_ours { "REGATTA_FABRIC" } else { "FI_PROVIDER" };
    let fix = format!(
        "set {variable} to that of the network (cxi on Slingshot, efa on EFA, verbs on InfiniBand), \
         and check with `fi_info -p NAME` that libfabric finds it on the nodes and in the container"
    );
    Some(tcp.finding(level, "tcp-provider", message, fix))
}

/// Whether a provider of libfabric uses TCP or UDP: `tcp`, `tcp;ofi_rxm`, `sockets`.
fn is_tcp_provider(provider: &str) -> bool {
    let core = provider.split(';').next().unwrap_or_default();
    matches!(core, "tcp" | "sockets" | "udp" | "net")
}

/// Whether the log of a rank shows interfaces of a fast network.
fn has_fabric(rank: &RankReport) -> bool {
    let mut interfaces = rank.sockets.values().chain(&rank.bootstrap);
    interfaces.any(|name| interface::kind(name) == InterfaceKind::Fabric)
        || !rank.ib_devices.is_empty()
}

/// Whether the log of a rank shows that TCP is a fall-back.
fn has_fast_network(rank: &RankReport) -> bool {
    has_fabric(rank)
        || rank.plugin.failure.is_some()
        || rank.plugin.is_loaded()
        || forced_tcp(rank).is_some()
        || rank.variables.get("NCCL_NET_PLUGIN").is_some_and(|value| value != "none")
}

/// The variable that makes NCCL use TCP.
fn forced_tcp(rank: &RankReport) -> Option<String> {
    let is = |name: &str, values: &[&str]| {
        let value = rank.variables.get(name)?;
        let is_one = values.iter().any(|v| v.eq_ignore_ascii_case(value));
        is_one.then(|| format!("{name}={value}"))
    };
    is("NCCL_NET", &["Socket"])
        .or_else(|| is("NCCL_IB_DISABLE", &["1"]))
        .or_else(|| is("NCCL_NET_PLUGIN", &["none", ""]))
}

/// How to get a rank off TCP, to this network if it is known.
pub fn network_fix(
    rank: &RankReport,
    report: &NetReport,
    wanted: Option<&RequiredNetwork>,
) -> String {
    // Slingshot, EFA.
    const LIBFABRIC: RequiredNetwork = RequiredNetwork::Libfabric { provider: None };
    let has_hsn = report.ranks.iter().any(|rank| {
        rank.sockets.values().chain(&rank.bootstrap).any(|name| name.starts_with("hsn"))
    });
    if let Some(setting) = forced_tcp(rank) {
        let name = setting.split('=').next().unwrap_or_default();
        return format!("unset {name}: {setting} makes NCCL use TCP");
    }
    if rank.plugin.not_used.is_some() {
        return unused_plugin_fix();
    }
    if rank.plugin.failure.is_some() {
        return plugin_fix(rank);
    }
    let wanted = match (wanted, has_hsn, &rank.plugin.not_found) {
        (Some(wanted), ..) => Some(wanted),
        (None, true, _) => Some(&LIBFABRIC),
        (None, false, _) if rank.ib_missing => Some(&RequiredNetwork::Ib),
        (None, false, Some(_)) => Some(&LIBFABRIC),
        (None, false, None) => None,
    };
    match wanted {
        Some(RequiredNetwork::Libfabric { .. }) => format!(
            "{}; set NCCL_NET=\"AWS Libfabric\" (its name in recent releases: Libfabric), so that the \
             job fails instead of using TCP; `regatta env` prints the settings of the site",
            plugin_fix(rank)
        ),
        Some(RequiredNetwork::Ib) => {
            "on a cluster with InfiniBand or RoCE: check that /dev/infiniband and libibverbs are visible to \
             the job (also inside the container) and that NCCL_IB_HCA names existing devices; with another \
             network, load its plug-in by NCCL_NET_PLUGIN"
                .to_owned()
        }
        _ => "load the network's plug-in (NCCL_NET_PLUGIN=/path/to/libnccl-net.so), or make InfiniBand \
                 visible to the job; `regatta env` prints the settings of the site"
            .to_owned(),
    }
}

/// How to get a plug-in loaded.
fn plugin_fix(rank: &RankReport) -> String {
    let failure = rank.plugin.failure.as_deref().unwrap_or_default();
    let is_rccl = rank.library.as_deref().is_some_and(|version| version.starts_with("RCCL"))
        || rank.plugin.not_found.as_deref().is_some_and(|text| text.contains("rccl"));
    let library = if is_rccl { "librccl-net.so" } else { "libnccl-net.so" };
    match failure {
        "" => format!(
            "set NCCL_NET_PLUGIN to the absolute path of the plug-in ({library} of aws-ofi-nccl or \
             aws-ofi-rccl on Slingshot and EFA), and bind it into the container if there is one"
        ),
        _ if failure.contains("Failed to initialize") => {
            "the plug-in found no usable device: check that the provider's devices (/dev/cxi*, \
             /dev/infiniband) and the site's libfabric are visible to the job, and look for the plug-in's \
             own warnings with FI_LOG_LEVEL=warn"
                .to_owned()
        }
        _ if failure.contains("unsupported") => {
            "the plug-in exports no interface version that this NCCL knows: use a plug-in built for it"
                .to_owned()
        }
        _ => "the plug-in needs a library that is missing or of another version: put the site's libfabric \
              into LD_LIBRARY_PATH in front of others (in a container: bind it from the host), and check \
              with `ldd`"
            .to_owned(),
    }
}

/// Interfaces that TCP uses or may use.
fn socket_interfaces(report: &NetReport) -> Option<Finding> {
    let is_wrong = |rank: &RankReport, name: &str| {
        let has_fabric = rank.sockets.values().any(|n| interface::kind(n) == InterfaceKind::Fabric);
        match interface::kind(name) {
            InterfaceKind::Fabric => false,
            InterfaceKind::Management | InterfaceKind::Virtual => true,
            InterfaceKind::Ethernet => has_fabric,
        }
    };
    // Interfaces of the list are used unless the channels name others.
    let names = |rank: &RankReport| -> BTreeSet<String> {
        let used = rank.transports.iter().filter(|t| t.transport.name == "Socket");
        let used: BTreeSet<String> = used.filter_map(|t| t.nic.clone()).collect();
        let all = rank.sockets.values().cloned();
        let candidates = if used.is_empty() { all.collect() } else { used };
        candidates.into_iter().filter(|name| is_wrong(rank, name)).collect()
    };
    let in_list = |rank: &RankReport| rank.sockets.values().any(|name| is_wrong(rank, name));
    let carries = Concerned::with(report, |rank| uses_tcp(rank) && !names(rank).is_empty());
    let is_used = |rank: &&RankReport| rank.networks_used().contains("Socket");
    let (found, level, verb) = match carries.filter(|found| found.ranks.iter().any(is_used)) {
        Some(carries) => (carries, Level::Failure, "traffic between nodes goes over"),
        None => {
            let listed = Concerned::with(report, in_list)?;
            let is_undecided = |rank: &RankReport| rank.network.is_none() || uses_tcp(rank);
            let level = listed.failure_if(is_undecided, Level::Note);
            (listed, level, "NCCL's list of interfaces for TCP includes")
        }
    };
    let ranks = &found.ranks;
    let mut wrong: BTreeSet<String> = ranks.iter().flat_map(|rank| names(rank)).collect();
    if wrong.is_empty() {
        let all = ranks.iter().flat_map(|rank| rank.sockets.values().map(move |n| (rank, n)));
        wrong = all.filter(|(rank, name)| is_wrong(rank, name)).map(|(_, n)| n.clone()).collect();
    }
    let is_virtual = wrong.iter().all(|name| interface::kind(name) == InterfaceKind::Virtual);
    let what = if is_virtual {
        "an interface that reaches no other node"
    } else {
        "the management network"
    };
    let names = wrong.into_iter().take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    let message = format!("{verb} {what} ({names}) on {}", found.who());
    Some(found.finding(level, "management-network", message, interface_fix(found.first)))
}

/// The setting that selects the fabric's interfaces.
fn interface_fix(rank: &RankReport) -> String {
    let names = rank.sockets.values().chain(&rank.bootstrap);
    let fabric: BTreeSet<&str> = names
        .filter(|name| interface::kind(name) == InterfaceKind::Fabric)
        .map(|name| interface::prefix(name))
        .collect();
    let set = match rank.variables.get("NCCL_SOCKET_IFNAME") {
        Some(value) => format!("NCCL_SOCKET_IFNAME is {value}: set it to"),
        None => "set NCCL_SOCKET_IFNAME to".to_owned(),
    };
    match fabric.is_empty() {
        true => format!(
            "{set} the interfaces of the high-speed network (hsn on Slingshot, ib on InfiniBand)"
        ),
        false => format!("{set} {}", fabric.into_iter().collect::<Vec<_>>().join(",")),
    }
}

/// Our plug-in, where it leaves the network to NCCL.
fn unused_plugin(report: &NetReport) -> Option<Finding> {
    let unused = Concerned::with(report, |rank| rank.plugin.not_used.is_some())?;
    let reason = unused.first.plugin.not_used.as_deref()?;
    let level = unused.failure_if(uses_tcp, Level::Note);
    let (who, name) = (unused.who(), fabric_plugin::NETWORK);
    let message = format!("NET/{name} is not used on {who}: {reason}");
    Some(unused.finding(level, "plugin-not-used", message, unused_plugin_fix()))
}

/// How to get our plug-in used.
fn unused_plugin_fix() -> String {
    "make libfabric and the devices of its provider (/dev/cxi*, /dev/infiniband) visible to the job: \
     REGATTA_LIBFABRIC is the path of the library, REGATTA_FABRIC the provider, `fi_info` lists those that \
     libfabric finds; with REGATTA_NET=require the job ends instead of using NCCL's own transport"
        .to_owned()
}

/// Plug-ins that failed, and plug-ins that were asked for but not found.
fn plugin(report: &NetReport) -> Option<Finding> {
    let has_failed = |rank: &RankReport| {
        rank.plugin.failure.is_some()
            && rank.plugin.not_used.is_none()
            && (uses_tcp(rank) || !rank.plugin.is_loaded())
    };
    if let Some(failed) = Concerned::with(report, has_failed) {
        let why = failed.first.plugin.failure.as_deref().unwrap_or_default();
        let message = format!("the network plug-in could not be used on {}: {why}", failed.who());
        let level = failed.failure_if(uses_tcp, Level::Warning);
        return Some(failed.finding(level, "plugin-failed", message, plugin_fix(failed.first)));
    }
    let missing = Concerned::with(report, |rank| {
        let asked = rank.variables.get("NCCL_NET_PLUGIN").is_some_and(|value| value != "none");
        rank.plugin.not_found.is_some() && !rank.plugin.is_loaded() && (asked || uses_tcp(rank))
    })?;
    let (level, name) = match missing.first.variables.get("NCCL_NET_PLUGIN") {
        Some(name) => (Level::Warning, format!("NCCL_NET_PLUGIN={name}")),
        None => (Level::Note, missing.first.plugin.not_found.clone().unwrap_or_default()),
    };
    let message = format!("no network plug-in was found on {} ({name})", missing.who());
    Some(missing.finding(level, "plugin-not-found", message, plugin_fix(missing.first)))
}

/// GPUDirect RDMA that is off, on networks that have it.
fn gdr(report: &NetReport) -> Vec<Finding> {
    let mut found = Vec::new();
    for (state, level, code) in [
        (Gdr::Off, Level::Warning, "gdr-off"),
        (Gdr::Partial, Level::Warning, "gdr-partial"),
        (Gdr::ReceiveOnly, Level::Note, "gdr-receive-only"),
    ] {
        let has_state = |rank: &RankReport| rank.gdr == state && !uses_tcp(rank);
        let Some(concerned) = Concerned::with(report, has_state) else { continue };
        let (who, name) = (concerned.who(), state.name());
        let (message, fix) = match state {
            Gdr::ReceiveOnly => (
                format!("GPUDirect RDMA is on for receives only on {who}"),
                "usual on GPUs without NVLink; NCCL_NET_GDR_READ=1 turns it on for sends, \
                                 too: measure with `regatta bench`"
                    .to_owned(),
            ),
            _ => (format!("GPUDirect RDMA is {name} on {who}"), gdr_fix(concerned.first)),
        };
        found.push(concerned.finding(level, code, message, fix));
    }
    found
}

/// How to turn on GPUDirect RDMA.
pub fn gdr_fix(rank: &RankReport) -> String {
    if let Some(level) = rank.variables.get("NCCL_NET_GDR_LEVEL") {
        let is_off = ["0", "LOC"].iter().any(|off| off.eq_ignore_ascii_case(level));
        if is_off {
            return format!("unset NCCL_NET_GDR_LEVEL: {level} disables GPUDirect RDMA");
        }
    }
    let reason = match &rank.gdr_disabled {
        Some(text) => format!(" (the log says: {text})"),
        None => String::new(),
    };
    format!(
        "set NCCL_NET_GDR_LEVEL=PHB{reason}; if it stays off, check that the driver's nvidia-peermem or \
         DMA-BUF support (AMD: amdgpu's peer memory) and, on Slingshot, /dev/gdrdrv are available to the job"
    )
}

/// A property in which all ranks should agree.
struct Property {
    code: &'static str,
    level: Level,
    /// How a value is introduced: `network NET/Socket`.
    name: &'static str,
    value: fn(&RankReport) -> Option<String>,
    fix: &'static str,
}

const SAME_ENVIRONMENT: &str = "start all ranks with the same modules, container and variables; check the \
                                nodes named above";

/// Properties, and why they should be equal.
const PROPERTIES: [Property; 7] = [
    Property {
        code: "networks-differ",
        level: Level::Failure,
        name: "network",
        value: |rank| {
            let used = rank.networks_used().into_iter().collect::<Vec<_>>().join(", ");
            let name = if used.is_empty() { rank.network.clone()? } else { used };
            Some(format!("NET/{name}"))
        },
        fix: SAME_ENVIRONMENT,
    },
    Property {
        code: "gdr-differs",
        level: Level::Warning,
        name: "GPUDirect RDMA",
        value: |rank| {
            let is_known = rank.gdr != Gdr::Unknown && !uses_tcp(rank);
            is_known.then(|| rank.gdr.name().to_owned())
        },
        fix: "compare driver, kernel modules (nvidia-peermem) and device files of the nodes",
    },
    Property {
        code: "plugins-differ",
        level: Level::Warning,
        name: "plug-in",
        value: |rank| match rank.plugin.describe() {
            Some(plugin) => Some(plugin),
            None => (rank.plugin.not_found.is_some() || rank.plugin.failure.is_some())
                .then(|| "none".to_owned()),
        },
        fix: SAME_ENVIRONMENT,
    },
    Property {
        code: "versions-differ",
        level: Level::Warning,
        name: "library",
        value: |rank| rank.library.clone(),
        fix: "load the same NCCL or RCCL on all nodes",
    },
    Property {
        code: "interfaces-differ",
        level: Level::Warning,
        name: "TCP interfaces",
        value: |rank| {
            let names: Vec<&str> = rank.sockets.values().map(String::as_str).collect();
            (!names.is_empty()).then(|| names.join(","))
        },
        fix: "name the interfaces in NCCL_SOCKET_IFNAME, and check the links of the nodes named above",
    },
    Property {
        code: "bootstrap-differs",
        level: Level::Note,
        name: "bootstrap interface",
        value: |rank| rank.bootstrap.clone(),
        fix: "name the interfaces in NCCL_SOCKET_IFNAME",
    },
    Property {
        code: "nics-differ",
        level: Level::Warning,
        name: "InfiniBand devices",
        value: |rank| {
            let names: Vec<&str> = rank.ib_devices.values().map(String::as_str).collect();
            (!names.is_empty()).then(|| names.join(","))
        },
        fix: "check the links of the nodes named above (ibstat), or name the devices in NCCL_IB_HCA",
    },
];

/// Ranks that differ from the majority.
fn differing_ranks(report: &NetReport) -> Vec<Finding> {
    PROPERTIES.iter().flat_map(|property| differences(property, report)).collect()
}

fn differences(property: &Property, report: &NetReport) -> Vec<Finding> {
    let by_value = report.by_value(property.value);
    if by_value.len() < 2 {
        return Vec::new();
    }
    let known: usize = by_value.values().map(Vec::len).sum();
    let Property { name, code, level, fix, .. } = property;
    let majority = by_value.iter().find(|(_, ranks)| ranks.len() * 2 > known);
    let Some((usual, _)) = majority else {
        let parts = by_value.iter().take(MAX_NAMES);
        let parts =
            parts.map(|(value, ranks)| format!("{value} on {}", describe_ranks(ranks, usize::MAX)));
        let message = format!("ranks differ in {name}: {}", parts.collect::<Vec<_>>().join("; "));
        return vec![finding(*level, code, message, *fix)];
    };
    let minority = by_value.iter().filter(|(value, _)| *value != usual).take(MAX_NAMES);
    let finding = |(value, ranks): (&String, &Vec<&RankReport>)| {
        let who = describe_ranks(ranks, known);
        let differ = if ranks.len() == 1 { "differs" } else { "differ" };
        let message = format!("{who} {differ} from the others: {name} {value}, not {usual}");
        Some(Concerned::new(report, ranks.clone())?.finding(*level, code, message, *fix))
    };
    minority.filter_map(finding).collect()
}

/// Ranks of the largest communicator without a log.
fn missing_ranks(report: &NetReport) -> Option<Finding> {
    let expected = report.expected_ranks?;
    let present: BTreeSet<u32> = report.ranks.iter().filter_map(|rank| rank.rank).collect();
    if report.ranks.len() as u64 >= u64::from(expected) || present.len() != report.ranks.len() {
        return None;
    }
    let count = expected as usize - report.ranks.len();
    let missing = ranges((0..expected).filter(|rank| !present.contains(rank)));
    let names = match missing.len() > MAX_NAMES {
        true => String::new(),
        false => format!(": {}", missing.join(",")),
    };
    let message =
        format!("the log has no record of {} of {expected}{names}", pluralize(count, "rank"));
    let fix = "pass the logs of all ranks; `regatta launch --check-net` writes one per rank";
    Some(finding(Level::Note, "missing-ranks", message, fix))
}

/// Ranks that have initialised but not connected a channel.
fn no_channels(report: &NetReport) -> Option<Finding> {
    let has_channels = |rank: &RankReport| !rank.transports.is_empty();
    if report.expected_ranks == Some(1) || report.ranks.iter().any(has_channels) {
        return None;
    }
    let by = report.ranks.iter().find_map(|rank| rank.network.as_deref());
    let network = by.map_or(String::new(), |name| format!("; NCCL has chosen NET/{name}"));
    let message = format!("the log has no channel of any rank{network}");
    let fix = "channels are connected by the first collective (from NCCL 2.22 on): let the job run one, \
               with NCCL_DEBUG=INFO and INIT in NCCL_DEBUG_SUBSYS";
    Some(finding(Level::Unknown, "no-channels", message, fix))
}

/// Bootstrap connections over the wrong interface: slow start of large jobs, or none at all.
fn bootstrap(report: &NetReport) -> Option<Finding> {
    let kind = |rank: &RankReport| rank.bootstrap.as_deref().map(interface::kind);
    let wrong = |rank: &RankReport| match kind(rank) {
        Some(InterfaceKind::Management) => true,
        Some(InterfaceKind::Virtual) => report.nodes > 1,
        _ => false,
    };
    let found = Concerned::with(report, wrong)?;
    let name = found.first.bootstrap.as_deref().unwrap_or_default();
    let (level, what) = match kind(found.first) {
        Some(InterfaceKind::Virtual) => (Level::Warning, "an interface that reaches no other node"),
        _ => (Level::Note, "the management network"),
    };
    let message = format!("bootstrap connections of {} use {what} ({name})", found.who());
    Some(found.finding(level, "bootstrap-interface", message, interface_fix(found.first)))
}

/// GPUs of a node that copy through host memory.
fn shared_memory(report: &NetReport) -> Option<Finding> {
    let has = |rank: &RankReport, kind| rank.transports.iter().any(|t| t.transport.kind == kind);
    let copies =
        |rank: &RankReport| has(rank, TransportKind::Shm) && !has(rank, TransportKind::P2p);
    let shm = Concerned::with(report, copies)?;
    let who = shm.who();
    let message =
        format!("GPUs of one node communicate through host memory (SHM), not P2P, on {who}");
    let fix = match shm.first.variables.get("NCCL_P2P_DISABLE") {
        Some(value) if value != "0" => format!("unset NCCL_P2P_DISABLE ({value})"),
        _ => "normal on PCIe across sockets; with NVLink or xGMI: let every rank see all GPUs of the node \
              (no --gpus-per-task or --gpu-bind cgroups), and check NCCL_P2P_LEVEL and IOMMU settings"
            .to_owned(),
    };
    Some(shm.finding(Level::Note, "shared-memory", message, fix))
}

/// The first warnings of the library itself.
fn library_warnings(report: &NetReport) -> Vec<Finding> {
    let mut by_text: Vec<(&str, Vec<&RankReport>)> = Vec::new();
    for rank in &report.ranks {
        for text in &rank.warnings {
            match by_text.iter().position(|(known, _)| known == text) {
                Some(at) => by_text[at].1.push(rank),
                None if by_text.len() < MAX_WARNINGS => by_text.push((text, vec![rank])),
                None => {}
            }
        }
    }
    let finding = |(text, ranks): (&str, Vec<&RankReport>)| {
        let warned = Concerned::new(report, ranks)?;
        let (level, fix) = match text {
            _ if text.contains("network") && text.contains("not found")
                || text.contains("Failed to initialize any NET plugin") =>
            {
                (Level::Failure, network_name_fix(warned.first))
            }
            _ => (Level::Note, String::new()),
        };
        let message = format!("NCCL warns on {}: {text}", warned.who());
        Some(warned.finding(level, "library-warning", message, fix))
    };
    by_text.into_iter().filter_map(finding).collect()
}

/// `NCCL_NET` names a network that does not exist.
fn network_name_fix(rank: &RankReport) -> String {
    let name = rank.variables.get("NCCL_NET");
    let set = name.map_or(String::new(), |name| format!("NCCL_NET={name} names no network here: "));
    format!("{set}{}", plugin_fix(rank))
}
