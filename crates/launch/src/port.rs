//! Reservation of the rendezvous port (`MASTER_PORT`): rank 0 listens on it only seconds later, and
//! no other job on this node may take it in between.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

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

/// Reserves the first port that is neither in use nor reserved. Any local user can hold the locks of
/// all ports, which must not prevent a launch: if no free port can be locked, one whose lock another
/// user holds is used without a lock.
pub fn reserve(preferred: impl IntoIterator<Item = u16>) -> Option<ReservedPort> {
    let ports: Vec<u16> = preferred.into_iter().collect();
    let locked = ports.iter().find_map(|&port| {
        // The lock comes first, or two jobs would find the same port free.
        let lock = lock(port)?;
        is_free(port).then_some(ReservedPort { port, _lock: lock })
    });
    locked.or_else(|| unlocked(&ports))
}

/// The first free port that no job of this user holds. The order depends on the process, so that two
/// jobs are unlikely to choose the same port.
fn unlocked(ports: &[u16]) -> Option<ReservedPort> {
    let (last, first) = ports.split_at(std::process::id() as usize % ports.len().max(1));
    let mut ports = first.iter().chain(last).copied();
    let port = ports.find(|&port| is_free(port) && !is_held_by_this_user(port))?;
    Some(ReservedPort { port, _lock: None })
}

/// Whether a server can listen on the port on all interfaces.
pub fn is_free(port: u16) -> bool {
    let six = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    // Other errors mean that the host has no IPv6.
    let taken = six.is_err_and(|e| e.kind() == ErrorKind::AddrInUse);
    !taken && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// The socket that holds a reservation; `None` where abstract sockets are not available.
type Lock = Option<UnixListener>;

fn lock_name(port: u16) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("regatta-port-{port}"))
}

/// Locks a port by binding an abstract Unix socket. The kernel releases the name when its owner
/// exits for any reason, and scopes it to the network namespace, like the port. The socket listens,
/// because the kernel tells the owner of a listening socket only.
fn lock(port: u16) -> Option<Lock> {
    match lock_name(port).and_then(|name| UnixListener::bind_addr(&name)) {
        Ok(socket) => Some(Some(socket)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        Err(_) => Some(None),
    }
}

/// Whether a process of this user holds the lock of a port. The connection does not block on a full
/// backlog, which another user may have filled.
fn is_held_by_this_user(port: u16) -> bool {
    let stream = lock_name(port).and_then(|name| mio::net::UnixStream::connect_addr(&name));
    let owner = stream.map(|stream| socket_peercred(stream).map(|owner| owner.uid));
    owner.is_ok_and(|owner| owner == Ok(geteuid()))
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

    /// Runs `work` as another user; false if this process may not. The raw system call changes the
    /// calling thread only.
    fn as_another_user(work: impl FnOnce() + Send) -> bool {
        const OTHER: libc::uid_t = 65_534;
        let run = || {
            // SAFETY: a plain system call.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) };
            (result == 0).then(work).is_some()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn locks_of_another_user_do_not_prevent_a_reservation() {
        let mut squatted = Vec::new();
        let ports = 23_300..23_340;
        if !as_another_user(|| squatted.extend(ports.clone().filter_map(lock))) {
            return;
        }
        let open = reserve(ports.clone().chain([23_340])).unwrap();
        assert_eq!(open.port(), 23_340, "locks of other users are respected where possible");
        let contested = reserve(ports.clone()).unwrap();
        assert!(ports.contains(&contested.port()));
        // Own locks are still respected.
        squatted.clear();
        let own = lock(23_300).unwrap();
        assert!(reserve([23_300]).is_none());
        drop(own);
    }
}
