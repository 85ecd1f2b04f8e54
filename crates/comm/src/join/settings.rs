//! What a rank must know to join, from the launch environment or from the caller.

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use regatta_wire::secret::Secret;

use crate::CommError;
use crate::fabric::{Choice, fast_network};
use crate::tcp::{Member, fingerprint};

/// How a rank joins.
#[derive(Debug)]
pub struct Settings {
    /// This rank.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// This rank's number on its node.
    pub local_rank: u32,
    /// The name or address of rank 0's node.
    pub master: String,
    /// The port on which rank 0 listens.
    pub port: u16,
    /// Rank 0: a socket that listens already, instead of that port.
    pub listener: Option<TcpListener>,
    /// The job's secret.
    pub secret: Secret,
    /// The name of this node.
    pub host: String,
    /// What tells this node from others: ranks that say the same share memory.
    pub node: String,
    /// The addresses of the NICs that connections should use, spread over them; none: as the
    /// system routes. Where there are several, all ranks name as many, in the same order of
    /// networks.
    pub bind: Vec<IpAddr>,
    /// How many connections to a rank large messages are spread over, 1 to 16.
    pub connections: u8,
    /// How messages between ranks go: libfabric, or TCP.
    pub fabric: Choice,
    /// How long all ranks may take to come.
    pub join_within: Duration,
    /// How long nothing may be heard of a rank before it counts as lost.
    pub lost_after: Duration,
    /// How long a rank may be waited for in a collective.
    pub desync_after: Duration,
    /// A file with the algorithms that were found best on this machine; rank 0 reads it for all.
    pub tuning: Option<PathBuf>,
    /// Whether results are bit for bit the same from run to run, of as many ranks on as many nodes:
    /// what was measured then chooses no algorithm. Rank 0's word counts for all.
    pub deterministic: bool,
    /// Whether all ranks compare what they call before any data moves. The same for all ranks.
    pub debug: bool,
}

impl Settings {
    /// With what is usual for the rest.
    pub fn new(rank: u32, ranks: u32, master: &str, port: u16, secret: Secret) -> Self {
        Self {
            rank,
            ranks,
            local_rank: 0,
            master: master.to_owned(),
            port,
            listener: None,
            secret,
            host: host(),
            node: node(),
            bind: Vec::new(),
            connections: 2,
            fabric: Choice::default(),
            join_within: Duration::from_secs(120),
            lost_after: Duration::from_secs(15),
            desync_after: Duration::from_secs(300),
            tuning: None,
            deterministic: false,
            debug: false,
        }
    }

    /// From the environment that a launcher gives: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
    /// `MASTER_ADDR`, `MASTER_PORT`, and `REGATTA_SECRET_FILE`, a file that only the user can read.
    /// `REGATTA_BIND` may name the addresses of the NICs to use, with commas, `REGATTA_FABRIC` be
    /// `off`, `auto`, or the provider of libfabric's to use; `REGATTA_LOST_AFTER` and
    /// `REGATTA_DESYNC_AFTER` are seconds, and `REGATTA_COMM_DEBUG=1` compares calls first.
    /// `REGATTA_TUNING` may name a file of algorithms, and `REGATTA_DETERMINISTIC=1` do without it.
    pub fn from_environment() -> Result<Self, CommError> {
        let get = |name: &str| std::env::var(name).ok();
        Self::from_variables(&get, secret(&get)?)
    }

    fn from_variables(
        get: &dyn Fn(&str) -> Option<String>,
        secret: Secret,
    ) -> Result<Self, CommError> {
        let ranks = number(get, "WORLD_SIZE")?;
        let rank = number(get, "RANK")?;
        let port = u16::try_from(number(get, "MASTER_PORT")?);
        let port = port.map_err(|_| bad("MASTER_PORT is no port".to_owned()))?;
        let mut settings = Self::new(rank, ranks, &needed(get, "MASTER_ADDR")?, port, secret);
        if get("LOCAL_RANK").is_some() {
            settings.local_rank = number(get, "LOCAL_RANK")?;
        }
        if let Some(bind) = get("REGATTA_BIND") {
            let no_address = |_| bad(format!("REGATTA_BIND is {bind}, which is no IP address"));
            let addresses = bind.split(',').map(|address| address.trim().parse());
            settings.bind = addresses.collect::<Result<_, _>>().map_err(no_address)?;
        }
        if let Some(after) = seconds(get, "REGATTA_LOST_AFTER")? {
            settings.lost_after = after;
        }
        if let Some(after) = seconds(get, "REGATTA_DESYNC_AFTER")? {
            settings.desync_after = after;
        }
        settings.debug = switch(get, "REGATTA_COMM_DEBUG")?;
        settings.deterministic = switch(get, "REGATTA_DETERMINISTIC")?;
        settings.tuning = get("REGATTA_TUNING").filter(|file| !file.is_empty()).map(PathBuf::from);
        settings.fabric = Choice::parse(&get("REGATTA_FABRIC").unwrap_or_default());
        Ok(settings)
    }

    /// This rank, as the others should know it.
    pub(super) fn member(&self, ips: Vec<IpAddr>, port: u16) -> Member {
        let (rank, local_rank) = (self.rank, self.local_rank);
        let (host, node) = (self.host.clone(), self.node_number());
        let fabric = self.fabric.wish(fast_network());
        Member { rank, local_rank, host, node, ips, port, debug: self.debug, fabric }
    }

    /// What tells this node from others, in few bytes.
    pub(super) fn node_number(&self) -> u64 {
        fingerprint(self.node.bytes())
    }
}

fn bad(what: String) -> CommError {
    let hint = "start ranks with `regatta launch`, or set what it would".to_owned();
    CommError::Join { what, hint }
}

/// Whether a variable is 1; by itself it is 0.
fn switch(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<bool, CommError> {
    match get(name).as_deref().map(str::trim) {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(text) => Err(bad(format!("{name} is {text:?}, which is not 0 or 1"))),
    }
}

fn needed(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<String, CommError> {
    get(name).ok_or_else(|| bad(format!("{name} is not set")))
}

fn number(get: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<u32, CommError> {
    let text = needed(get, name)?;
    text.trim().parse().map_err(|_| bad(format!("{name} is {text:?}, which is no number")))
}

/// A time in seconds, if it is set.
/// Thirty years: more cannot be added to a clock everywhere.
const MOST_SECONDS: f64 = 1e9;

fn seconds(
    get: &dyn Fn(&str) -> Option<String>,
    name: &str,
) -> Result<Option<Duration>, CommError> {
    let Some(text) = get(name) else { return Ok(None) };
    let number: Option<f64> = text.trim().parse().ok();
    let time = number
        .filter(|n| *n > 0.0 && *n <= MOST_SECONDS)
        .and_then(|n| Duration::try_from_secs_f64(n).ok());
    let wrong = || {
        bad(format!("{name} is {text:?}, which is no number of seconds from 0 to {MOST_SECONDS}"))
    };
    time.map(Some).ok_or_else(wrong)
}

/// The job's secret, from the file that only the user can read.
fn secret(get: &dyn Fn(&str) -> Option<String>) -> Result<Secret, CommError> {
    let file = needed(get, "REGATTA_SECRET_FILE")?;
    read_secret(Path::new(&file))
}

fn read_secret(file: &Path) -> Result<Secret, CommError> {
    use std::os::unix::fs::MetadataExt;
    let shown = file.display();
    let unread = |e: std::io::Error| bad(format!("REGATTA_SECRET_FILE {shown}: {e}"));
    let mode = std::fs::metadata(file).map_err(unread)?.mode();
    if mode & 0o077 != 0 {
        let what = format!("REGATTA_SECRET_FILE {shown} can be read by others");
        return Err(CommError::Join { what, hint: format!("run `chmod 600 {shown}`") });
    }
    let text = std::fs::read_to_string(file).map_err(unread)?;
    Secret::from_hex(text.trim()).map_err(|e| bad(format!("REGATTA_SECRET_FILE {shown}: {e}")))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The boot of the kernel, and of its namespaces the one that `/dev/shm` is of.
fn node() -> String {
    use std::os::unix::fs::MetadataExt;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let shm = std::fs::metadata("/dev/shm").map_or(0, |meta| meta.dev());
    format!("{} {} {shm}", host(), boot.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GOOD: [(&str, &str); 5] = [
        ("RANK", "3"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node1"),
        ("MASTER_PORT", "29500"),
    ];

    fn from(change: (&str, Option<&str>)) -> Result<Settings, CommError> {
        let get = |name: &str| match change {
            (changed, value) if changed == name => value.map(str::to_owned),
            _ => GOOD.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()),
        };
        Settings::from_variables(&get, Secret::generate().unwrap())
    }

    #[test]
    fn the_launch_environment_is_enough() {
        let settings = from(("REGATTA_BIND", Some("10.0.0.7"))).unwrap();
        assert_eq!((settings.rank, settings.ranks, settings.local_rank), (3, 8, 1));
        assert_eq!((settings.master.as_str(), settings.port), ("node1", 29500));
        assert_eq!(settings.bind, ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        let settings = from(("REGATTA_BIND", Some("10.0.0.7, fd00::1"))).unwrap();
        assert_eq!(settings.bind[1], "fd00::1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn times_and_the_debug_mode_can_be_set() {
        let usual = from(("RANK", Some("0"))).unwrap();
        assert_eq!((usual.desync_after.as_secs(), usual.debug), (300, false));
        let after = from(("REGATTA_DESYNC_AFTER", Some("1.5"))).unwrap().desync_after;
        assert_eq!(after, Duration::from_millis(1500));
        assert_eq!(from(("REGATTA_LOST_AFTER", Some("7"))).unwrap().lost_after.as_secs(), 7);
        assert!(from(("REGATTA_COMM_DEBUG", Some("1"))).unwrap().debug);
        assert!(!from(("REGATTA_COMM_DEBUG", Some("0"))).unwrap().debug);
        assert!(from(("REGATTA_DETERMINISTIC", Some("1"))).unwrap().deterministic);
        let tuning = from(("REGATTA_TUNING", Some("best.json"))).unwrap().tuning;
        assert_eq!(tuning, Some(PathBuf::from("best.json")));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let changes = [
            ("RANK", None, "RANK is not set"),
            ("WORLD_SIZE", Some("many"), "WORLD_SIZE is \"many\", which is no number"),
            ("MASTER_PORT", Some("70000"), "MASTER_PORT is no port"),
            ("MASTER_ADDR", None, "MASTER_ADDR is not set"),
            ("REGATTA_BIND", Some("eth0"), "REGATTA_BIND is eth0, which is no IP address"),
            (
                "REGATTA_DESYNC_AFTER",
                Some("0"),
                "REGATTA_DESYNC_AFTER is \"0\", which is no number",
            ),
            ("REGATTA_LOST_AFTER", Some("1e99"), "REGATTA_LOST_AFTER is \"1e99\""),
            (
                "REGATTA_COMM_DEBUG",
                Some("yes"),
                "REGATTA_COMM_DEBUG is \"yes\", which is not 0 or 1",
            ),
        ];
        for (name, value, says) in changes {
            let error = from((name, value)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_secret_that_others_can_read_is_none() {
        let path = std::env::temp_dir().join(format!("regatta-secret-{}", std::process::id()));
        std::fs::write(&path, format!("{}\n", "a7".repeat(32))).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        mode(0o640);
        let error = read_secret(&path).unwrap_err().to_string();
        assert!(error.contains("can be read by others; run `chmod 600"), "{error}");
        mode(0o600);
        assert_eq!(read_secret(&path).unwrap().to_hex(), "a7".repeat(32));
        std::fs::write(&path, "short").unwrap();
        assert!(read_secret(&path).unwrap_err().to_string().contains("64 hexadecimal digits"));
        std::fs::remove_file(&path).unwrap();
    }
}
