//! Handling of control-plane messages.

use std::net::TcpStream;

use regatta_wire::clock;

use super::conn::{Conn, ConnPeer};
use super::{ControlPlane, ControlRole};
use crate::control::dial::set_socket_options;
use crate::control::messages::{
    ACCEPTED, ACCEPTED_REUSE, Fault, FromRoot, Hello, MAX_CONNECTIONS, ToRoot, decode, encode,
};

impl ControlPlane {
    /// Handles a frame. Returns whether the connection stays with the control plane.
    pub(super) fn handle_frame(&mut self, id: usize, conn: &mut Conn, frame: &[u8]) -> bool {
        let now = clock::now();
        match conn.peer {
            ConnPeer::Unauthenticated(_) => return self.hello(id, conn, frame),
            ConnPeer::Rank(rank) => {
                let message = decode::<ToRoot>(frame);
                match (&mut self.role, message) {
                    (ControlRole::Root(root), Some(ToRoot::HasTable)) => root.has_table(rank),
                    (ControlRole::Root(root), Some(message)) => {
                        root.coordinator.handle(rank, message, now);
                    }
                    _ => {}
                }
            }
            ConnPeer::Root => {
                if let Some(message) = decode::<FromRoot>(frame)
                    && let Some(answer) = self.apply(message)
                {
                    conn.link.send(&encode(&answer));
                }
            }
        }
        true
    }

    /// Handles the first frame of an authenticated peer.
    fn hello(&mut self, id: usize, conn: &mut Conn, frame: &[u8]) -> bool {
        match (decode::<Hello>(frame), &mut self.role) {
            (Some(Hello::Data { rank, index }), _) if index < MAX_CONNECTIONS => {
                let sending = index == 0 && self.shared.lock().connections_to(rank) > 0;
                conn.link.send(if sending { ACCEPTED_REUSE } else { ACCEPTED });
                // The first connection may be written to as soon as the data plane has it. The others
                // must be in the data plane before data arrives, that is, before the reply is sent.
                let first = index == 0;
                if !first {
                    self.hand_to_data_plane(conn, rank, index);
                }
                // The reply fits into the empty send buffer. Otherwise the peer gives up.
                let _ = conn.write();
                if first {
                    self.hand_to_data_plane(conn, rank, index);
                }
                false
            }
            (Some(Hello::WorldTable), _) => {
                self.table_requests.push(id);
                true
            }
            (Some(Hello::Join { world_size, member }), ControlRole::Root(root)) => {
                conn.peer = ConnPeer::Rank(member.rank);
                if let Err(rejected) = root.register(id, world_size, member) {
                    conn.link.send(&encode(&rejected));
                    let unknown = std::net::Ipv4Addr::UNSPECIFIED.into();
                    conn.peer = ConnPeer::Unauthenticated(unknown);
                }
                true
            }
            _ => false,
        }
    }

    /// Hands a data connection to the data plane.
    fn hand_to_data_plane(&mut self, conn: &mut Conn, rank: u32, index: u8) {
        use std::os::fd::AsFd;
        let _ = self.poll.registry().deregister(&mut conn.stream);
        if let Ok(fd) = conn.stream.as_fd().try_clone_to_owned() {
            let stream = TcpStream::from(fd);
            set_socket_options(&stream, self.timing.lost_after);
            self.shared.add_incoming(rank, index, stream);
        }
    }

    /// Applies a message from rank 0 and returns the answer, if it asks for one.
    pub(super) fn apply(&mut self, message: FromRoot) -> Option<ToRoot> {
        if let (FromRoot::Shutdown, ControlRole::Member { root_shut_down, .. }) =
            (&message, &mut self.role)
        {
            *root_shut_down = true;
        }
        self.registry.apply(message)
    }

    /// Handles the end of a connection.
    pub(super) fn connection_ended(&mut self, peer: ConnPeer, why: &str) {
        match (&mut self.role, peer) {
            (ControlRole::Root(root), ConnPeer::Rank(rank)) => root.connection_closed(rank, why),
            (ControlRole::Root(root), ConnPeer::Unauthenticated(from)) => {
                root.record_unauthenticated(from, why);
            }
            (ControlRole::Member { root_shut_down: false, .. }, ConnPeer::Root) => {
                let fault = Fault::Lost { rank: 0, why: why.to_owned() };
                self.registry.abort(None, fault);
            }
            _ => {}
        }
    }
}
