//! One rank, whose peers are plain sockets.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};

use super::*;
use crate::matching::{Envelope, MessageKey, PostedRecv};
use crate::tcp::frame::{HEADER_BYTES, Header};
use crate::transport::{MatchKey, RecvAction, RequestId};
use crate::{DType, ReduceOp};

const LENGTH: usize = 1000;

/// A rank with communicators 1 and 2.
fn rank(unexpected_limit: u64) -> Sockets {
    let shared = Arc::new(SharedState::new().unwrap());
    for comm_id in [1, 2] {
        shared.lock().comms.get(comm_id);
    }
    Sockets { unexpected_limit, ..Sockets::new(shared) }
}

/// Both ends of a connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Adds a connection from a rank and returns its remote end.
fn connect(sockets: &Sockets, from: u32) -> TcpStream {
    let (far, near) = pair();
    sockets.add_incoming(from, 0, near);
    far
}

fn envelope(comm_id: u64, tag: u32, length: usize) -> Envelope {
    let key = MessageKey::new(comm_id, MatchKey::Tag(tag), 0);
    Envelope { key, length: length as u64, signature_hash: 0 }
}

/// Sends a message of a communicator whose bytes all equal its tag.
fn send(far: &mut TcpStream, comm_id: u64, tag: u32) {
    let header = Header { envelope: envelope(comm_id, tag, LENGTH), stripes: 1 };
    far.write_all(&[&header.encode()[..], &[tag as u8; LENGTH]].concat()).unwrap();
}

fn recv(sockets: &Sockets, comm_id: u64, tag: u32, into: &mut [u8]) -> UserRecv {
    let envelope = envelope(comm_id, tag, into.len());
    let request = sockets.shared.lock().next_request();
    PostedRecv { envelope, request, buffer: UserBuffer::new(into, RecvAction::Copy) }
}

/// Posts a receive in communicator 1.
fn receive(sockets: &Sockets, from: u32, tag: u32, into: &mut [u8]) -> RequestId {
    let recv = recv(sockets, 1, tag, into);
    sockets.receive(from, recv);
    recv.request
}

/// Makes progress until all requests of a communicator completed.
fn wait(sockets: &Sockets, comm_id: u64, requests: &[RequestId]) {
    let mut done = Vec::new();
    while !requests.iter().all(|request| done.contains(request)) {
        sockets.progress();
        done.append(&mut sockets.shared.lock().comms.take_completed(comm_id));
    }
}

fn unexpected_bytes(sockets: &Sockets, from: u32) -> u64 {
    lock(&sockets.peer(from).queue).unexpected_bytes()
}

#[test]
fn a_receive_completes_behind_more_unexpected_messages_than_the_limit() {
    let sockets = rank(2 * LENGTH as u64);
    let mut far = connect(&sockets, 7);
    (0..20).for_each(|tag| send(&mut far, 1, tag));
    for tag in (0..20).rev() {
        let mut into = [99; LENGTH];
        let request = receive(&sockets, 7, tag, &mut into);
        wait(&sockets, 1, &[request]);
        assert!(into.iter().all(|byte| *byte == tag as u8), "tag {tag}");
    }
    assert_eq!(unexpected_bytes(&sockets, 7), 0);
}

#[test]
fn other_peers_are_read_first_when_one_exceeds_the_unexpected_limit() {
    let limit = 2 * LENGTH as u64;
    let sockets = rank(limit);
    let (mut full, mut other) = (connect(&sockets, 7), connect(&sockets, 8));
    (0..20).for_each(|tag| send(&mut full, 1, tag));
    let (mut last, mut one) = ([0; LENGTH], [0; LENGTH]);
    let awaited = receive(&sockets, 7, 19, &mut last);
    while unexpected_bytes(&sockets, 7) < limit {
        sockets.progress();
    }
    let before = unexpected_bytes(&sockets, 7);
    send(&mut other, 1, 3);
    let expected = receive(&sockets, 8, 3, &mut one);
    let stream = lock(&sockets.peer(8).streams)[0].clone();
    while stream.peek(&mut [0]).unwrap() == 0 {}
    // Reading a header takes at least one round, reading the payload another.
    sockets.progress();
    assert_eq!(unexpected_bytes(&sockets, 7), before);
    wait(&sockets, 1, &[expected, awaited]);
    assert_eq!((last, one), ([19; LENGTH], [3; LENGTH]));
}

/// A rank that sends on one of two connections and exits loses no data.
#[test]
fn data_sent_before_both_connections_close_is_delivered() {
    for over_local in [false, true] {
        let sockets = rank(UNEXPECTED_LIMIT);
        let (mut far, (local, mut other)) = (connect(&sockets, 7), pair());
        sockets.add_dialled(7, local, true);
        send(if over_local { &mut other } else { &mut far }, 1, 5);
        drop((far, other));
        let mut into = [0u8; LENGTH];
        let request = receive(&sockets, 7, 5, &mut into);
        wait(&sockets, 1, &[request]);
        assert_eq!(into, [5; LENGTH]);
    }
}

/// Reports that the reduction has started, and waits until the other communicator has finished.
static REDUCTION: OnceLock<(Sender<()>, Mutex<Receiver<()>>)> = OnceLock::new();

#[test]
fn a_communicator_progresses_while_another_one_reduces() {
    let sockets = rank(UNEXPECTED_LIMIT);
    let (mut far_1, mut far_2) = (connect(&sockets, 7), connect(&sockets, 8));
    sockets.adopt_incoming(8);
    let (started, is_started) = channel();
    let (finish, is_finished) = channel();
    REDUCTION.set((started, Mutex::new(is_finished))).unwrap();
    send(&mut far_1, 1, 5);
    std::thread::scope(|scope| {
        let sockets = &sockets;
        scope.spawn(move || {
            let mut into = [0; LENGTH];
            let mut recv = recv(sockets, 1, 5, &mut into);
            let sum = RecvAction::Reduce(DType::U8, ReduceOp::Sum);
            recv.buffer = UserBuffer::new(&mut into, sum);
            recv.buffer.on_write = Some(|| {
                let (started, is_finished) = REDUCTION.get().unwrap();
                started.send(()).unwrap();
                let is_finished = is_finished.lock().unwrap();
                // Only a lock that the reduction holds lets this expire.
                is_finished.recv_timeout(Duration::from_secs(60)).unwrap();
            });
            sockets.receive(7, recv);
            wait(sockets, 1, &[recv.request]);
            assert_eq!(into, [5; LENGTH]);
        });
        is_started.recv().unwrap();
        // A new connection, a send, a receive and the poll set of the other communicator.
        let _far_3 = connect(sockets, 9);
        let payload = [6; LENGTH];
        let request = sockets.shared.lock().next_request();
        let start = payload.as_ptr();
        sockets.send(8, UserSend { envelope: envelope(2, 6, LENGTH), request, start });
        let mut sent = [0; HEADER_BYTES + LENGTH];
        far_2.read_exact(&mut sent).unwrap();
        assert_eq!(sent[HEADER_BYTES..], payload);
        let mut into = [0; LENGTH];
        let receive = recv(sockets, 2, 7, &mut into);
        sockets.receive(8, receive);
        assert_eq!(sockets.sleep_set(Duration::ZERO).sockets.len(), 1);
        send(&mut far_2, 2, 7);
        wait(sockets, 2, &[request, receive.request]);
        assert_eq!(into, [7; LENGTH]);
        finish.send(()).unwrap();
    });
}
