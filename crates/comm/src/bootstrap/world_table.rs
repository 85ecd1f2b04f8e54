//! Receives the world table, the addresses of all ranks, from the parent in a tree of ranks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use regatta_wire::clock;

use super::backoff::{fraction, random};
use super::root_connection::RootConnector;
use super::{BootstrapConfig, dial};
use crate::control::{CommRegistry, Dial, DialError, Hello, RankInfo, encode};
use crate::{CommError, Result};

/// The ranks that cannot reach their parents ask rank 0 within this time per rank of the job, because
/// a firewall makes all of them ask.
const SPREAD_PER_RANK: Duration = Duration::from_micros(200);

/// Receives the encoded table from `parent`, or from rank 0 at `root` if the parent cannot be reached:
/// firewalls may allow connections to rank 0 only.
pub fn fetch(
    config: &BootstrapConfig,
    parent: &RankInfo,
    root: SocketAddr,
    registry: &CommRegistry,
    until: Instant,
) -> Result<Vec<u8>> {
    let has_failed = || registry.job_fault().is_some();
    let request = |at: SocketAddr, until: Instant| {
        let dial = Dial { cancelled: &has_failed, ..dial(config, at, until) };
        dial.open().and_then(|mut conn| dial.request(&mut conn, &encode(&Hello::WorldTable)))
    };
    let left = until.saturating_duration_since(clock::now());
    let parent_until = clock::now() + config.lost_after.min(left / 2);
    let parent_at = parent.ips.first().map(|ip| SocketAddr::new(*ip, parent.port));
    let no_address = || DialError::Unreachable("the rank has no address".to_owned());
    let failed = match parent_at.ok_or_else(no_address).and_then(|at| request(at, parent_until)) {
        Ok(table) => return Ok(table),
        Err(failed) => failed,
    };
    let spread = (SPREAD_PER_RANK * config.world_size).min(left / 4);
    std::thread::sleep(fraction(spread, random(config.rank)));
    let mut connector = RootConnector::new(config);
    let table = loop {
        let table = request(root, until);
        if table.is_ok() || has_failed() || !connector.pause(until) {
            break table;
        }
    };
    table.map_err(|error| match registry.job_fault() {
        Some(fault) => CommError::bootstrap(fault.to_string(), "see the output of that rank"),
        None => {
            let what = format!(
                "cannot receive the addresses of all ranks from rank {} ({failed}) or from rank 0 at \
                 {root} ({error})",
                parent.rank
            );
            CommError::bootstrap(what, "check that these ranks are running and reachable")
        }
    })
}
