//! Reservation of the rendezvous port (`MASTER_PORT`): rank 0 listens on it only seconds later, and
//! no other job on this node may take it in between.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A port that no other Regatta job on this node gets while this value exists. Child processes do
/// not inherit the reservation.
#[derive(Debug)]
pub struct ReservedPort {
    port: u16,
    _lock: Lock,
}

impl ReservedPort {
    /// The port number.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Reserves the first port that is neither in use nor reserved.
pub fn reserve(preferred: impl IntoIterator<Item = u16>) -> Option<ReservedPort> {
    preferred.into_iter().find_map(|port| {
        // The lock comes first, or two jobs would find the same port free.
        let lock = lock(port)?;
        is_free(port).then_some(ReservedPort { port, _lock: lock })
    })
}

/// Whether a server can listen on the port on all interfaces.
pub fn is_free(port: u16) -> bool {
    let six = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    // Other errors mean that the host has no IPv6.
    let taken = six.is_err_and(|e| e.kind() == ErrorKind::AddrInUse);
    !taken && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// The socket that holds a reservation; `None` where abstract sockets are not available.
type Lock = Option<UnixDatagram>;

/// Locks a port by binding an abstract Unix socket. The kernel releases the name when its owner
/// exits for any reason, and scopes it to the network namespace, like the port.
fn lock(port: u16) -> Option<Lock> {
    let name = SocketAddr::from_abstract_name(format!("regatta-port-{port}"));
    match name.and_then(|name| UnixDatagram::bind_addr(&name)) {
        Ok(socket) => Some(Some(socket)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        Err(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_port_is_not_reserved_twice() {
        let first = reserve(23_100..23_200).unwrap();
        let second = reserve(23_100..23_200).unwrap();
        assert_ne!(first.port(), second.port(), "reserved although nothing listens on it");
        assert!(reserve([first.port(), second.port()]).is_none());
        let port = first.port();
        drop(first);
        assert_eq!(reserve([port]).map(|r| r.port()), Some(port));
    }

    #[test]
    fn port_in_use_is_skipped() {
        let four = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = four.local_addr().unwrap().port();
        assert!(!is_free(taken) && reserve([taken]).is_none());
        if let Ok(six) = TcpListener::bind(("::1", 0)) {
            assert!(!is_free(six.local_addr().unwrap().port()));
        }
    }
}
