//! Receives the world table, the addresses of all ranks, from the parent in a tree of ranks.

use std::net::SocketAddr;
use std::time::Instant;

use regatta_wire::clock;

use super::root_connection::connect_error;
use super::{BootstrapConfig, dial};
use crate::tcp::{Dial, DialError, Hello, RankInfo, SharedDataPlane, encode};
use crate::{CommError, Result};

/// Receives the encoded table from `parent`, or from rank 0 at `root` if the parent cannot be reached:
/// firewalls may allow connections to rank 0 only.
pub fn fetch(
    config: &BootstrapConfig,
    parent: &RankInfo,
    root: SocketAddr,
    shared: &SharedDataPlane,
    until: Instant,
) -> Result<Vec<u8>> {
    let has_failed = || !shared.lock().fault_state.faults.is_empty();
    let request = |at: SocketAddr, until: Instant| {
        let dial = Dial { cancelled: &has_failed, ..dial(config, at, until) };
        dial.open().and_then(|mut conn| dial.request(&mut conn, &encode(&Hello::WorldTable)))
    };
    let unreachable = || DialError::Unreachable("the rank has no address".to_owned());
    let parent_at = parent.ips.first().map(|ip| SocketAddr::new(*ip, parent.port));
    let parent_until = until.min(clock::now() + config.lost_after);
    let table = parent_at.ok_or_else(unreachable).and_then(|at| request(at, parent_until));
    table.or_else(|_| request(root, until)).map_err(|error| {
        match shared.lock().fault_state.faults.first() {
            Some((_, fault)) => {
                CommError::bootstrap(fault.to_string(), "see the output of this rank")
            }
            None => connect_error(root, error),
        }
    })
}
