//! The configuration of a rank's bootstrap, from the launch environment or from the caller.

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_model::hash::fnv1a;
use regatta_wire::link::Timing;
use regatta_wire::secret::Secret;

use crate::control::RankInfo;
use crate::libfabric::{Preference, ProviderChoice, has_fabric};
use crate::net_plugin::SUPPORTED_VERSIONS;
use crate::{CommError, Result};

/// Time for a peer to authenticate.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a rank.
#[derive(Debug)]
pub struct BootstrapConfig {
    /// This rank (`RANK`).
    pub rank: u32,
    /// The number of ranks (`WORLD_SIZE`).
    pub world_size: u32,
    /// The index of this rank on its node (`LOCAL_RANK`).
    pub local_rank: u32,
    /// The name or address of rank 0's node (`MASTER_ADDR`).
    pub master_addr: String,
    /// The port that rank 0 listens on (`MASTER_PORT`).
    pub master_port: u16,
    /// A listening socket for rank 0, instead of the port.
    pub listener: Option<TcpListener>,
    /// The job's secret.
    pub secret: Secret,
    /// The name of this host.
    pub host: String,
    /// An identifier of this node. Ranks with the same identifier share memory.
    pub node: String,
    /// The NIC addresses to bind connections to, which are spread over them. Empty for the routes
    /// of the system. If there are several, all ranks list the same number, in the same order of
    /// networks.
    pub bind: Vec<IpAddr>,
    /// The number of ranks to which each rank passes on the addresses of all ranks; the value of rank 0
    /// applies.
    pub table_fanout: u32,
    /// The network for messages: libfabric or TCP.
    pub fabric: ProviderChoice,
    /// The net plug-in of NCCL to use for messages instead: its library. `fabric` is then ignored; it may
    /// be meant for the plug-in.
    pub net_plugin: Option<PathBuf>,
    /// The version of the plug-in's interface to use; by default the newest, as NCCL does.
    pub net_plugin_version: Option<u32>,
    /// The timeout of the bootstrap.
    pub join_timeout: Duration,
    /// The heartbeat timeout, after which a rank counts as lost.
    pub lost_after: Duration,
    /// The timeout of a collective.
    pub desync_after: Duration,
    /// A file with measured algorithm choices. Rank 0 reads it for all ranks.
    pub tuning: Option<PathBuf>,
    /// Whether results are bitwise reproducible for the same number of ranks and nodes. The tuning
    /// file is then ignored. The setting of rank 0 applies to all ranks.
    pub deterministic: bool,
    /// Whether the ranks of a node read large inputs from each other's memory (cross memory attach),
    /// if all are permitted to; by default where it is faster. `Some(false)` on one rank applies to
    /// all, `Some(true)` only if it is set on all.
    pub cross_memory: Option<bool>,
    /// Whether ranks compare call signatures before any data moves. Must be the same on all ranks.
    pub debug: bool,
}

/// Environment variables that configure communication, including the paths of libraries; `RANK` and
/// the others of the launcher are not among them.
pub const VARIABLES: [&str; 15] = [
    "REGATTA_BIND",
    "REGATTA_CMA",
    "REGATTA_COMM_DEBUG",
    "REGATTA_CUDART",
    "REGATTA_DESYNC_AFTER",
    "REGATTA_DETERMINISTIC",
    "REGATTA_FABRIC",
    "REGATTA_HIP",
    "REGATTA_LIBFABRIC",
    "REGATTA_LOST_AFTER",
    "REGATTA_NCCL",
    "REGATTA_NET_PLUGIN",
    "REGATTA_NET_PLUGIN_VERSION",
    "REGATTA_RCCL",
    "REGATTA_TUNING",
];

impl BootstrapConfig {
    /// A configuration with default options.
    pub fn new(rank: u32, world_size: u32, master: &str, port: u16, secret: Secret) -> Self {
        Self {
            rank,
            world_size,
            local_rank: 0,
            master_addr: master.to_owned(),
            master_port: port,
            listener: None,
            secret,
            host: host_name(),
            node: node(),
            bind: Vec::new(),
            table_fanout: 256,
            fabric: ProviderChoice::default(),
            net_plugin: None,
            net_plugin_version: None,
            join_timeout: Duration::from_secs(120),
            lost_after: Duration::from_secs(15),
            desync_after: Duration::from_secs(300),
            tuning: None,
            deterministic: false,
            cross_memory: None,
            debug: false,
        }
    }

    /// Reads the launch environment: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`,
    /// `MASTER_PORT` and `REGATTA_SECRET_FILE`, a file that only the user can read. Optional:
    /// `REGATTA_BIND` (NIC addresses, comma-separated), `REGATTA_FABRIC` (`off`, `auto` or a
    /// libfabric provider), `REGATTA_NET_PLUGIN` (a net plug-in of NCCL) and
    /// `REGATTA_NET_PLUGIN_VERSION` (of its interface), `REGATTA_LOST_AFTER` and `REGATTA_DESYNC_AFTER` (seconds),
    /// `REGATTA_COMM_DEBUG=1` (compare call signatures), `REGATTA_TUNING` (algorithm table),
    /// `REGATTA_DETERMINISTIC=1` (ignore it) and `REGATTA_CMA` (0: never read other ranks' memory,
    /// 1: whenever permitted).
    pub fn from_env() -> Result<Self> {
        let get = |name: &str| std::env::var(name).ok();
        let secret = read_secret(Path::new(&required(&get, "REGATTA_SECRET_FILE")?))?;
        Self::from_variables(&get, secret)
    }

    fn from_variables(get: &Getenv, secret: Secret) -> Result<Self> {
        let world_size = number(get, "WORLD_SIZE")?;
        let rank = number(get, "RANK")?;
        let port = number(get, "MASTER_PORT")?;
        let reject = |_| invalid("MASTER_PORT", &port.to_string(), "a port number up to 65535");
        let port = u16::try_from(port).map_err(reject)?;
        let mut config = Self::new(rank, world_size, &required(get, "MASTER_ADDR")?, port, secret);
        if get("LOCAL_RANK").is_some() {
            config.local_rank = number(get, "LOCAL_RANK")?;
        }
        if let Some(bind) = get("REGATTA_BIND") {
            let addresses: Result<_, _> = bind.split(',').map(|ip| ip.trim().parse()).collect();
            let expected = "IP addresses separated by commas";
            config.bind = addresses.map_err(|_| invalid("REGATTA_BIND", &bind, expected))?;
        }
        config.lost_after = seconds(get, "REGATTA_LOST_AFTER", config.lost_after)?;
        config.desync_after = seconds(get, "REGATTA_DESYNC_AFTER", config.desync_after)?;
        config.debug = flag(get, "REGATTA_COMM_DEBUG")?.unwrap_or(false);
        config.deterministic = flag(get, "REGATTA_DETERMINISTIC")?.unwrap_or(false);
        config.cross_memory = flag(get, "REGATTA_CMA")?;
        config.tuning = path(get, "REGATTA_TUNING");
        config.fabric = ProviderChoice::parse(&get("REGATTA_FABRIC").unwrap_or_default());
        config.net_plugin = path(get, "REGATTA_NET_PLUGIN");
        config.net_plugin_version = net_plugin_version(get)?;
        Ok(config)
    }

    /// The description of this rank for its peers.
    pub(super) fn rank_info(&self, ips: Vec<IpAddr>, port: u16) -> RankInfo {
        let (rank, local_rank) = (self.rank, self.local_rank);
        let (host, node) = (self.host.clone(), self.node_id());
        let fabric = match self.net_plugin {
            Some(_) => Preference::NetPlugin,
            None => Preference::new(&self.fabric, has_fabric()),
        };
        RankInfo { rank, local_rank, host, node, ips, port, debug: self.debug, fabric }
    }

    /// A hash of the node identifier.
    pub(crate) fn node_id(&self) -> u64 {
        fnv1a(self.node.bytes())
    }

    /// The timeouts of connections.
    pub(crate) fn timing(&self) -> Timing {
        let (heartbeat, lost_after) = (self.lost_after / 4, self.lost_after);
        Timing { handshake: HANDSHAKE_TIMEOUT, heartbeat, lost_after }
    }
}

/// Reads an environment variable.
type Getenv<'a> = dyn Fn(&str) -> Option<String> + 'a;

const LAUNCH: &str = "start the ranks with `regatta launch`, which sets it";

/// Other variables than `REGATTA_*` are required.
fn invalid(name: &str, value: &str, expected: &str) -> CommError {
    let hint = if name.starts_with("REGATTA_") { "correct or unset it" } else { "correct it" };
    CommError::bootstrap(format!("{name} is {value:?}, expected {expected}"), hint)
}

/// Whether a variable is 1. The default is 0.
fn flag(get: &Getenv, name: &str) -> Result<Option<bool>> {
    match get(name).as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(text) => Err(invalid(name, text, "0 or 1")),
    }
}

fn path(get: &Getenv, name: &str) -> Option<PathBuf> {
    get(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn required(get: &Getenv, name: &str) -> Result<String> {
    get(name).ok_or_else(|| CommError::bootstrap(format!("{name} is not set"), LAUNCH))
}

fn number(get: &Getenv, name: &str) -> Result<u32> {
    let text = required(get, name)?;
    text.trim().parse().map_err(|_| invalid(name, &text, "a non-negative integer"))
}

fn net_plugin_version(get: &Getenv) -> Result<Option<u32>> {
    const NAME: &str = "REGATTA_NET_PLUGIN_VERSION";
    let Some(text) = get(NAME).filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let version = text.trim().parse().ok().filter(|version| SUPPORTED_VERSIONS.contains(version));
    version.map(Some).ok_or_else(|| invalid(NAME, &text, "8, 9, 10 or 11"))
}

/// About thirty years. Larger values overflow the clock on some systems.
const MAX_SECONDS: f64 = 1e9;

/// A time in seconds.
fn seconds(get: &Getenv, name: &str, default: Duration) -> Result<Duration> {
    let Some(text) = get(name) else { return Ok(default) };
    let number = text.trim().parse().ok().filter(|n| *n > 0.0 && *n <= MAX_SECONDS);
    let time = number.and_then(|n| Duration::try_from_secs_f64(n).ok());
    time.ok_or_else(|| invalid(name, &text, "seconds in (0, 1e9]"))
}

/// The job's secret, from a file that only the user can read.
fn read_secret(file: &Path) -> Result<Secret> {
    use std::os::unix::fs::MetadataExt;
    let shown = file.display();
    let unreadable = |error: std::io::Error| {
        CommError::bootstrap(format!("cannot read REGATTA_SECRET_FILE {shown}: {error}"), LAUNCH)
    };
    let mode = std::fs::metadata(file).map_err(unreadable)?.mode();
    if mode & 0o077 != 0 {
        let what = format!("REGATTA_SECRET_FILE {shown} is accessible to other users");
        return Err(CommError::bootstrap(what, format!("run `chmod 600 {shown}`")));
    }
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    let malformed = |error| format!("REGATTA_SECRET_FILE {shown} is malformed: {error}");
    Secret::from_hex(text.trim()).map_err(|error| CommError::bootstrap(malformed(error), LAUNCH))
}

/// The name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The host name, the boot ID and the device of `/dev/shm`, which differs between containers.
fn node() -> String {
    use std::os::unix::fs::MetadataExt;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let shm = std::fs::metadata("/dev/shm").map_or(0, |meta| meta.dev());
    format!("{} {} {shm}", host_name(), boot.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const VALID: [(&str, &str); 5] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node1"),
        ("MASTER_PORT", "29500"),
    ];

    fn from(change: (&str, Option<&str>)) -> Result<BootstrapConfig> {
        let get = |name: &str| match change {
            _ if name.starts_with("REGATTA_") && !VARIABLES.contains(&name) => {
                panic!("{name} is not listed")
            }
            (changed, value) if changed == name => value.map(str::to_owned),
            _ => VALID.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()),
        };
        BootstrapConfig::from_variables(&get, Secret::generate().unwrap())
    }

    #[test]
    fn reads_the_launch_environment() {
        let config = from(("REGATTA_BIND", Some("10.0.0.7, fd00::1"))).unwrap();
        assert_eq!((config.rank, config.world_size, config.local_rank), (3, 8, 1));
        assert_eq!((config.master_addr.as_str(), config.master_port), ("node1", 29500));
        assert_eq!(config.bind, ["10.0.0.7", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        let config = from(("REGATTA_BIND", Some("10.0.0.7"))).unwrap();
        assert_eq!(config.bind, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn reads_timeouts_and_options() {
        let with = |name, value| from((name, Some(value))).unwrap();
        let default = with("RANK", "0");
        assert_eq!((default.desync_after.as_secs(), default.debug), (300, false));
        let after = with("REGATTA_DESYNC_AFTER", "1.5").desync_after;
        assert_eq!(after, Duration::from_millis(1500));
        assert_eq!(with("REGATTA_LOST_AFTER", "7").lost_after.as_secs(), 7);
        assert!(with("REGATTA_COMM_DEBUG", "1").debug && !with("REGATTA_COMM_DEBUG", "0").debug);
        assert!(with("REGATTA_DETERMINISTIC", "1").deterministic);
        let cross_memory = ["", "0", "1"].map(|value| with("REGATTA_CMA", value).cross_memory);
        assert_eq!(cross_memory, [None, Some(false), Some(true)]);
        let tuning = with("REGATTA_TUNING", "best.json").tuning;
        assert_eq!(tuning, Some(PathBuf::from("best.json")));
        let plugin = with("REGATTA_NET_PLUGIN", "/libnccl-net.so").net_plugin;
        assert_eq!(plugin, Some(PathBuf::from("/libnccl-net.so")));
        let version = |text| with("REGATTA_NET_PLUGIN_VERSION", text).net_plugin_version;
        assert_eq!(["9", " "].map(version), [Some(9), None]);
    }

    #[test]
    fn missing_and_invalid_variables_are_named() {
        let changes = [
            ("RANK", None, "not set; start the ranks with `regatta launch`, which sets it"),
            ("WORLD_SIZE", Some("many"), "\"many\", expected a non-negative integer; correct it"),
            ("MASTER_PORT", Some("70000"), "\"70000\", expected a port number up to 65535"),
            ("MASTER_ADDR", None, "not set"),
            ("REGATTA_BIND", Some("eth0"), "\"eth0\", expected IP addresses separated by commas"),
            ("REGATTA_DESYNC_AFTER", Some("0"), "\"0\", expected seconds in (0, 1e9]"),
            ("REGATTA_NET_PLUGIN_VERSION", Some("7"), "\"7\", expected 8, 9, 10 or 11"),
            ("REGATTA_LOST_AFTER", Some("1e99"), "\"1e99\""),
            ("REGATTA_COMM_DEBUG", Some("yes"), "\"yes\", expected 0 or 1; correct or unset it"),
        ];
        for (name, value, message) in changes {
            let error = from((name, value)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name} is {message}")), "{error}");
        }
    }

    #[test]
    fn a_secret_file_accessible_to_others_is_rejected() {
        let path = std::env::temp_dir().join(format!("regatta-secret-{}", std::process::id()));
        std::fs::write(&path, format!("{}\n", "a7".repeat(32))).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o640);
        let error = read_secret(&path).unwrap_err().to_string();
        assert!(error.contains("is accessible to other users; run `chmod 600"), "{error}");
        mode(0o600);
        assert_eq!(read_secret(&path).unwrap().to_hex(), "a7".repeat(32));
        std::fs::write(&path, "short").unwrap();
        assert!(read_secret(&path).unwrap_err().to_string().contains("64 hexadecimal digits"));
        std::fs::remove_file(&path).unwrap();
    }
}
