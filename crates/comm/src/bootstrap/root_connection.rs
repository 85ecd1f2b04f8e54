//! The connection of a rank to rank 0, which may start listening later.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use regatta_wire::clock;

use super::backoff::{delay, random};
use super::{BootstrapConfig, dial};
use crate::control::{AuthConn, DialError};
use crate::{CommError, Result};

/// How long a resolved address is used. Each lookup may load a name server that all ranks share.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);

/// No further attempt is made in the last moments before the deadline.
const MIN_TIME_LEFT: Duration = Duration::from_millis(20);

/// Attempts to connect to rank 0.
pub struct RootConnector<'a> {
    config: &'a BootstrapConfig,
    /// The address of rank 0, and when it was resolved.
    resolved: Option<(SocketAddr, Instant)>,
    /// Attempts so far.
    attempts: u32,
}

impl<'a> RootConnector<'a> {
    pub fn new(config: &'a BootstrapConfig) -> Self {
        Self { config, resolved: None, attempts: 0 }
    }

    /// Connects to rank 0 before the deadline.
    pub fn connect(&mut self, until: Instant) -> Result<(AuthConn, SocketAddr)> {
        loop {
            let attempt = self.address().map(|at| (at, dial(self.config, at, until).open()));
            let error = match attempt {
                Ok((at, Ok(conn))) => return Ok((conn, at)),
                Ok((at, Err(error @ DialError::Rejected(_)))) => {
                    return Err(connect_error(at, error));
                }
                Ok((at, Err(error))) => connect_error(at, error),
                Err(error) => error,
            };
            if !self.pause(until) {
                return Err(error);
            }
        }
    }

    /// Waits before the next attempt. Returns false if there is no time for one.
    pub fn pause(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(clock::now());
        if left < MIN_TIME_LEFT {
            return false;
        }
        std::thread::sleep(delay(self.attempts, random(self.config.rank)).min(left / 2));
        self.attempts += 1;
        true
    }

    fn address(&mut self) -> Result<SocketAddr> {
        let is_recent = |(_, at): &(SocketAddr, Instant)| clock::elapsed(*at) < RESOLVE_INTERVAL;
        match self.resolved.filter(is_recent) {
            Some((address, _)) => Ok(address),
            None => {
                let address = resolve(self.config)?;
                self.resolved = Some((address, clock::now()));
                Ok(address)
            }
        }
    }
}

/// Resolves the address of rank 0.
pub fn resolve(config: &BootstrapConfig) -> Result<SocketAddr> {
    let (name, port) = (config.master_addr.as_str(), config.master_port);
    let unresolved = |why: &dyn std::fmt::Display| {
        let hint = "set it to a name or address of rank 0's node that all nodes resolve";
        CommError::bootstrap(format!("cannot resolve MASTER_ADDR {name}: {why}"), hint)
    };
    let mut found = (name, port).to_socket_addrs().map_err(|error| unresolved(&error))?;
    found.next().ok_or_else(|| unresolved(&"the name has no address"))
}

/// Why rank 0 cannot be reached.
pub fn connect_error(at: SocketAddr, error: DialError) -> CommError {
    let (why, hint) = match error {
        DialError::Unreachable(why) => {
            (why, "check that rank 0 is running and reachable from this node")
        }
        DialError::Rejected(why) => {
            (why, "give all ranks the same REGATTA_SECRET_FILE and each job its own MASTER_PORT")
        }
    };
    CommError::bootstrap(format!("cannot connect to rank 0 at {at}: {why}"), hint)
}
