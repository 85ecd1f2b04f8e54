//! The port where a job's ranks meet, kept for it: rank 0 listens there only seconds later, and
//! another job of this node must not take it meanwhile.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A port that no other job of this node gets while this lives. What this process starts does not
/// inherit it.
#[derive(Debug)]
pub struct Reserved {
    port: u16,
    _lock: Lock,
}

impl Reserved {
    /// Its number.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Keeps the first port that is free and kept for nobody else.
pub fn reserve(preferred: impl IntoIterator<Item = u16>) -> Option<Reserved> {
    preferred.into_iter().find_map(|port| {
        // The lock comes first, or two jobs would find the same port free.
        let lock = lock(port)?;
        is_free(port).then_some(Reserved { port, _lock: lock })
    })
}

/// Whether a server could listen on the port on every interface.
pub fn is_free(port: u16) -> bool {
    let six = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    // A host without IPv6 has nobody who listens there.
    let taken = six.is_err_and(|e| e.kind() == ErrorKind::AddrInUse);
    !taken && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// What keeps a port; nothing where there are no such locks.
type Lock = Option<UnixDatagram>;

/// The lock of a port, unless somebody holds it. An abstract name is gone with its holder, however
/// that ends, and belongs to one network namespace, as the port does.
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
    fn a_port_is_kept_for_one() {
        let first = reserve(23_100..23_200).unwrap();
        let second = reserve(23_100..23_200).unwrap();
        assert_ne!(first.port(), second.port(), "nobody listens, and yet it is kept");
        assert!(reserve([first.port(), second.port()]).is_none());
        let port = first.port();
        drop(first);
        assert_eq!(reserve([port]).map(|r| r.port()), Some(port));
    }

    #[test]
    fn a_port_where_somebody_listens_is_passed_over() {
        let four = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let taken = four.local_addr().unwrap().port();
        assert!(!is_free(taken) && reserve([taken]).is_none());
        if let Ok(six) = TcpListener::bind(("::1", 0)) {
            assert!(!is_free(six.local_addr().unwrap().port()));
        }
    }
}
