//! Two NICs in one thread, over TCP, with connection-oriented endpoints and with reliable datagram endpoints.
//! Skipped with a message if libfabric is missing and not required.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_testbed::{REQUIRE_LIBFABRIC, assert_within, poll_until, skip};

use super::device::{describe, discover};
use super::handle::Handle;
use super::hello::Hello;
use super::settings::Settings;
use super::*;
use crate::memory::{Memory, Region};

const TIMEOUT: Duration = Duration::from_secs(20);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn options(has_thread: bool) -> NicOptions {
    NicOptions { control_ip: LOCALHOST, timeout: Duration::from_secs(60), has_thread }
}

/// The provider with endpoints of both kinds.
const CONNECTION_ORIENTED: &str = "tcp";
const DATAGRAM: &str = "tcp;ofi_rxm";
const KINDS: [&str; 2] = [CONNECTION_ORIENTED, DATAGRAM];

/// Two NICs.
fn nics(provider: &'static str) -> Option<(Arc<Nic>, Arc<Nic>)> {
    nic(provider, false).zip(nic(provider, false))
}

fn nic(provider: &'static str, has_thread: bool) -> Option<Arc<Nic>> {
    let get = |name: &str| match name {
        settings::PROVIDER_VARIABLE => Some(provider.to_owned()),
        settings::INTERFACE_VARIABLE => Some("lo".to_owned()),
        _ => None,
    };
    let settings = Settings::read(get).unwrap();
    let devices = match discover(&settings, Path::new("/")) {
        Ok(devices) => devices,
        Err(why) => {
            skip(REQUIRE_LIBFABRIC, why);
            return None;
        }
    };
    let line = describe((1, 17), &devices);
    let expected = ", 1 NIC (lo), 10 Gb/s, GPUDirect RDMA: no (tcp";
    assert!(line.contains(expected), "{line}");
    assert_eq!(devices[0].is_connection_oriented, provider == CONNECTION_ORIENTED);
    Some(Nic::open(&devices[0], options(has_thread)).unwrap())
}

struct Pair {
    send: Connection,
    recv: Connection,
}

fn connect(from: &Arc<Nic>, to: &Arc<Nic>) -> Pair {
    let listener = Listener::new(to.clone()).unwrap();
    let handle = Handle::decode(&listener.handle().encode()).unwrap();
    let connectors = Connectors::default();
    let (mut send, mut recv) = (None, None);
    let start = Instant::now();
    while send.is_none() || recv.is_none() {
        assert_within(start, TIMEOUT);
        send = send.or_else(|| connectors.connect(|| Ok(from.clone()), 1, handle).unwrap());
        recv = recv.or_else(|| listener.accept().unwrap());
    }
    Pair { send: send.unwrap(), recv: recv.unwrap() }
}

fn buffer(bytes: &mut [u8]) -> Buffer {
    Buffer {
        start: bytes.as_mut_ptr(),
        length: bytes.len(),
        region: Region::NONE,
        registration: bytes.as_ptr() as usize,
    }
}

/// Tests until a request is complete. The other side makes progress, too.
fn wait(request: &RequestHandle, other: &RequestHandle) -> [usize; MAX_GROUPED_RECVS] {
    let start = Instant::now();
    loop {
        assert_within(start, TIMEOUT);
        if let TestResult::Done { sizes, .. } = request.test().unwrap() {
            return sizes;
        }
        // Completed requests must not be tested again, so only what is surely pending is.
        other.progress();
    }
}

/// Sends, trying again until it is granted.
fn send<'a>(pair: &'a Pair, bytes: &mut [u8], tag: i32) -> &'a RequestHandle {
    let start = Instant::now();
    loop {
        assert_within(start, TIMEOUT);
        // SAFETY: the callers keep the bytes until the request is complete.
        if let Some(request) = unsafe { pair.send.send(buffer(bytes), tag) }.unwrap() {
            return request;
        }
        pair.recv.progress();
    }
}

#[test]
fn messages_arrive_in_the_receives_of_their_group() {
    for has_thread in [false, true] {
        let nic = || nic(DATAGRAM, has_thread);
        let Some((one, other)) = nic().zip(nic()) else { return };
        check_groups(&connect(&one, &other));
    }
}

fn check_groups(pair: &Pair) {
    for size in [0usize, 1, 100, 70_000, 5_000_000] {
        let mut sent: [Vec<u8>; 3] = [1, 2, 3].map(|fill| vec![fill; size]);
        let mut received: [Vec<u8>; 3] = [(); 3].map(|()| vec![0; size + 10]);
        let [a, b, c] = &mut received;
        let group = [(buffer(a), 10), (buffer(b), 20), (buffer(c), 10)];
        // SAFETY: the buffers live until the requests are complete.
        let recv = unsafe { pair.recv.receive(&group) }.unwrap().unwrap();
        let [x, y, z] = &mut sent;
        let sends = [send(pair, y, 20), send(pair, x, 10), send(pair, z, 10)];
        // SAFETY: nothing is posted.
        assert!(unsafe { pair.send.send(buffer(&mut [1]), 10) }.unwrap().is_none(), "not granted");
        for request in sends {
            assert_eq!(wait(request, recv)[0], size);
        }
        assert_eq!(wait(recv, sends[0])[..3], [size; 3]);
        for (fill, received) in [1, 2, 3].into_iter().zip(&received) {
            assert!(
                received[..size].iter().all(|byte| *byte == fill) && received[size..] == [0; 10]
            );
        }
    }
}

#[test]
fn messages_of_a_connection_match_in_order() {
    for has_thread in [false, true] {
        let nic = || nic(CONNECTION_ORIENTED, has_thread);
        let Some((one, other)) = nic().zip(nic()) else { return };
        let pair = connect(&one, &other);
        for size in [0usize, 1, 100, 70_000, 5_000_000] {
            let mut sent: Vec<Vec<u8>> = (0..8).map(|fill| vec![fill; size]).collect();
            let mut received = vec![vec![9; size + 10]; 8];
            let (early, late) = received.split_at_mut(4);
            // SAFETY: the buffers live until the requests are complete.
            let post = |bytes: &mut Vec<u8>| unsafe {
                pair.recv.receive(&[(buffer(bytes), 0)]).unwrap().unwrap()
            };
            // Some receives are posted before their messages are sent, and some after it.
            let mut recvs: Vec<_> = early.iter_mut().map(post).collect();
            let sends: Vec<_> = sent.iter_mut().map(|bytes| send(&pair, bytes, 0)).collect();
            recvs.extend(late.iter_mut().map(post));
            for (request, recv) in sends.iter().zip(&recvs) {
                assert_eq!((wait(recv, request)[0], wait(request, recv)[0]), (size, size));
            }
            for (fill, received) in (0..8).zip(&received) {
                assert!(received[..size].iter().all(|byte| *byte == fill), "{size}");
                assert_eq!(received[size..], [9; 10]);
            }
        }
        // SAFETY: nothing is posted.
        let group = unsafe { pair.recv.receive(&[(Buffer::NONE, 0), (Buffer::NONE, 1)]) };
        assert!(group.is_err_and(|why| why.contains("a group of 2 receives, expected one")));
    }
}

#[test]
fn a_message_that_is_not_expected_keeps_no_other_connection_waiting() {
    let Some((one, other)) = nics(CONNECTION_ORIENTED) else { return };
    let (early, pair) = (connect(&one, &other), connect(&one, &other));
    let mut sent = vec![3; 5_000_000];
    let request = send(&early, &mut sent, 0);
    (0..5).for_each(|_| exchange(&pair));
    let mut received = vec![0; 5_000_000];
    // SAFETY: the buffers live until the requests are complete.
    let recv = unsafe { early.recv.receive(&[(buffer(&mut received), 0)]) }.unwrap().unwrap();
    assert_eq!((wait(recv, request)[0], wait(request, recv)[0]), (5_000_000, 5_000_000));
    assert!(received == sent);
}

#[test]
fn what_was_sent_arrives_although_the_sender_has_closed_the_connection() {
    let Some((one, other)) = nics(CONNECTION_ORIENTED) else { return };
    let Pair { send: sender, recv } = connect(&one, &other);
    let mut first = [0u8; 4];
    // SAFETY: the buffers live until the requests are complete.
    let request = unsafe { recv.receive(&[(buffer(&mut first), 0)]) }.unwrap().unwrap();
    let mut sent = [[1u8; 4], [2; 4]];
    // SAFETY: as above.
    let mut post = |at: usize| unsafe { sender.send(buffer(&mut sent[at]), 0) }.unwrap().unwrap();
    for sent in [post(0), post(1)] {
        wait(sent, request);
    }
    drop(sender);
    wait(request, request);
    let mut second = [0u8; 4];
    // SAFETY: as above.
    let request = unsafe { recv.receive(&[(buffer(&mut second), 0)]) }.unwrap().unwrap();
    wait(request, request);
    assert_eq!((first, second), ([1; 4], [2; 4]));
}

#[test]
fn a_receive_may_be_posted_long_after_the_sender_has_closed_the_connection() {
    let Some((one, other)) = nics(CONNECTION_ORIENTED) else { return };
    let Pair { send: sender, recv } = connect(&one, &other);
    let busy = connect(&one, &other);
    let mut sent = [3u8; 100];
    // SAFETY: the buffers live until the requests are complete.
    let request = unsafe { sender.send(buffer(&mut sent), 0) }.unwrap().unwrap();
    wait(request, request);
    drop(sender);
    let start = Instant::now();
    // Longer than the checks after which a connection without data fails.
    while start.elapsed() < Duration::from_millis(1500) {
        exchange(&busy);
    }
    let mut received = [0u8; 100];
    // SAFETY: as above.
    let request = unsafe { recv.receive(&[(buffer(&mut received), 0)]) }.unwrap().unwrap();
    wait(request, request);
    assert_eq!(received, sent);
    check_ended(&recv);
}

#[test]
fn a_sender_that_ends_before_its_endpoint_is_connected_is_an_error() {
    let Some(nic) = nic(CONNECTION_ORIENTED, false) else { return };
    let listener = Listener::new(nic).unwrap();
    let Handle { address, token } = listener.handle();
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut exchange = frame::Exchange::new(stream);
    let (provider, host) = ("tcp".to_owned(), "other".to_owned());
    let hello = Hello { token, key: 1, connection: 2, process: 3, provider, host, address: vec![] };
    exchange.send(&hello);
    assert!(exchange.flush().unwrap());
    let start = Instant::now();
    poll_until(Duration::from_millis(1), "the reply", || {
        assert!(listener.accept().unwrap().is_none());
        exchange.receive().unwrap().is_some()
    });
    // Late enough for a check of descriptors.
    assert!(listener.accept_at(start + Duration::from_secs(3600)).unwrap().is_none());
    drop(exchange);
    let error = loop {
        assert_within(start, TIMEOUT);
        match listener.accept() {
            Ok(connection) => assert!(connection.is_none()),
            Err(error) => break error,
        }
    };
    let expected = "other (process 3): the peer closed the connection or ended";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn an_endpoint_that_takes_long_to_open_keeps_no_other_connection_waiting() {
    let Some((one, other)) = nics(CONNECTION_ORIENTED) else { return };
    let listeners = [(); 2].map(|()| Listener::new(other.clone()).unwrap());
    let [slow, fast] = listeners.each_ref().map(Listener::handle);
    let connectors = Connectors::default();
    let (opening, is_opening) = std::sync::mpsc::channel();
    let (open, may_open) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (connectors, slow_nic) = (&connectors, one.clone());
        scope.spawn(move || {
            let nic = || {
                opening.send(()).unwrap();
                may_open.recv_timeout(TIMEOUT).map_err(|error| error.to_string())?;
                Ok(slow_nic)
            };
            connectors.connect(nic, 1, slow).unwrap();
        });
        is_opening.recv().unwrap();
        connectors.connect(|| Ok(one.clone()), 2, fast).unwrap();
        open.send(()).unwrap();
    });
}

#[test]
fn a_message_that_is_longer_than_its_receive_is_an_error() {
    let Some((one, other)) = nics(CONNECTION_ORIENTED) else { return };
    let pair = connect(&one, &other);
    let mut received = [0u8; 10];
    let bytes = buffer(&mut received[..5]);
    // SAFETY: the buffers live until the connections are closed.
    let recv = unsafe { pair.recv.receive(&[(bytes, 0)]) }.unwrap().unwrap();
    let mut sent = [7u8; 20];
    send(&pair, &mut sent, 0);
    let error = error_of(recv, &pair);
    assert!(!error.is_empty() && received[5..] == [0; 5], "{error}");
}

/// The error of a request.
fn error_of(request: &RequestHandle, pair: &Pair) -> String {
    let start = Instant::now();
    loop {
        assert_within(start, TIMEOUT);
        match request.test() {
            Ok(result) => assert_eq!(result, TestResult::Pending),
            Err(error) => return error,
        }
        pair.send.progress();
    }
}

#[test]
fn strangers_are_not_connected_to_an_endpoint() {
    use std::io::Write as _;
    let Some((one, other)) = nics(CONNECTION_ORIENTED) else { return };
    let pair = connect(&one, &other);
    let address = other.fabric_address();
    let mut silent = std::net::TcpStream::connect(address).unwrap();
    let mut garbage = std::net::TcpStream::connect(address).unwrap();
    garbage.write_all(&[0xff; 200]).unwrap();
    // A process that knows the provider's protocol, but not the key of a connection.
    let wrong = pair.recv.number();
    for data in [(wrong, 0), (wrong + 1, 0)] {
        one.ask_for_connection(1000 + data.0, &other, data);
    }
    exchange(&pair);
    silent.write_all(&[0]).unwrap();
    exchange(&connect(&one, &other));
}

#[test]
fn a_send_is_cut_to_the_size_of_its_receive() {
    let Some((one, other)) = nics(DATAGRAM) else { return };
    let pair = connect(&one, &other);
    let (mut sent, mut received) = ([7u8; 20], [0u8; 5]);
    // SAFETY: the buffers live until the requests are complete.
    let recv = unsafe { pair.recv.receive(&[(buffer(&mut received), 0)]) }.unwrap().unwrap();
    let request = send(&pair, &mut sent, 0);
    assert_eq!((wait(request, recv)[0], wait(recv, request)[0]), (5, 5));
    assert_eq!(received, [7; 5]);
}

#[test]
fn requests_are_limited_and_given_back() {
    for provider in KINDS {
        let Some((one, other)) = nics(provider) else { return };
        check_limit(&connect(&one, &other));
    }
}

fn check_limit(pair: &Pair) {
    let mut memory = [0u8; MAX_REQUESTS + 1];
    for round in 0..3 {
        let mut post = |at: usize| {
            let bytes = buffer(&mut memory[at..=at]);
            // SAFETY: the memory lives until the connections are closed.
            unsafe { pair.recv.receive(&[(bytes, 0)]) }.unwrap()
        };
        let posted: Vec<_> = (0..MAX_REQUESTS).map(|at| post(at).unwrap()).collect();
        assert!(post(MAX_REQUESTS).is_none());
        for (at, recv) in posted.into_iter().enumerate() {
            let mut byte = [round * 50 + at as u8];
            let request = send(pair, &mut byte, 0);
            wait(request, recv);
            wait(recv, request);
            assert_eq!(memory[at], byte[0]);
        }
    }
}

#[test]
fn memory_is_not_written_after_it_is_deregistered_or_the_connection_closed() {
    for (provider, close) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let Some((one, other)) = nics(provider) else { return };
        let pair = connect(&one, &other);
        let mut received = vec![0u8; 100_000];
        let registration = received.as_ptr() as usize;
        // SAFETY: the memory is released before it is freed.
        let recv = unsafe { pair.recv.receive(&[(buffer(&mut received), 0)]) }.unwrap().unwrap();
        // Another registration is none of its business, also of the same memory.
        pair.recv.deregister(Region::NONE, 1);
        assert_eq!(recv.test(), Ok(TestResult::Pending));
        if !close {
            pair.recv.deregister(Region::NONE, registration);
            let error = recv.test().unwrap_err();
            assert!(error.contains("deregistered while it was in use"), "{error}");
        }
        let Pair { send: sender, recv: receiver } = pair;
        if close {
            drop(receiver);
        }
        let mut bytes = vec![9; 100_000];
        // SAFETY: the memory lives until the connection is closed.
        let sent = unsafe { sender.send(buffer(&mut bytes), 0) }.unwrap().is_some();
        drop(sender);
        assert!(received.iter().all(|byte| *byte == 0));
        // The provider may not give up the send; the receiver's endpoint works all the same.
        assert!(sent || !one.has_failed());
        assert!(!other.has_failed() && other.is_retired() == (provider == DATAGRAM));
        exchange(&connect(&other, &nic(provider, false).unwrap()));
    }
}

/// Sends a message.
fn exchange(pair: &Pair) {
    let mut received = [0u8; 3];
    // SAFETY: the buffer lives until the request is complete.
    let recv = unsafe { pair.recv.receive(&[(buffer(&mut received), 5)]) }.unwrap().unwrap();
    let request = send(pair, &mut [4, 5, 6], 5);
    wait(request, recv);
    wait(recv, request);
    assert_eq!(received, [4, 5, 6]);
}

#[test]
fn a_peer_that_ended_is_an_error() {
    for (provider, used) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let Some((one, other)) = nics(provider) else { return };
        let pair = connect(&one, &other);
        if used {
            exchange(&pair);
        }
        check_end(pair);
    }
}

fn check_end(Pair { send, recv }: Pair) {
    let mut memory = [0u8; 8];
    // SAFETY: the memory lives until the connection is closed.
    let request = unsafe { recv.receive(&[(buffer(&mut memory), 0)]) }.unwrap().unwrap();
    drop(send);
    check_error(&recv, request);
}

/// A receive from a sender that has closed the connection is an error.
fn check_ended(recv: &Connection) {
    let mut memory = [0u8; 8];
    // SAFETY: the memory lives until the connection has failed, and the provider has given it up.
    let request = unsafe { recv.receive(&[(buffer(&mut memory), 0)]) }.unwrap().unwrap();
    check_error(recv, request);
    recv.deregister(Region::NONE, memory.as_ptr() as usize);
}

fn check_error(recv: &Connection, request: &RequestHandle) {
    let mut memory = [0u8; 8];
    let start = Instant::now();
    let error = loop {
        assert_within(start, TIMEOUT);
        match request.test() {
            Ok(result) => assert_eq!(result, TestResult::Pending),
            Err(error) => break error,
        }
    };
    assert!(error.contains("the peer closed the connection or ended"), "{error}");
    // SAFETY: as above.
    let again = unsafe { recv.receive(&[(buffer(&mut memory), 0)]) };
    assert!(again.is_err_and(|again| again == error));
}

#[test]
fn strangers_are_not_accepted() {
    use std::io::{Read as _, Write as _};
    let Some((one, other)) = nics(CONNECTION_ORIENTED) else { return };
    let listener = Listener::new(other.clone()).unwrap();
    let handle = listener.handle();
    let mut garbage = std::net::TcpStream::connect(handle.address).unwrap();
    garbage.write_all(&[0xff; 200]).unwrap();
    let mut silent = std::net::TcpStream::connect(handle.address).unwrap();
    let wrong = Handle { token: [0; 16], ..handle };
    let connectors = Connectors::default();
    let start = Instant::now();
    // The listener closes the connection of a sender with a wrong token.
    let error = loop {
        assert_within(start, TIMEOUT);
        assert!(listener.accept().unwrap().is_none());
        if let Err(error) = connectors.connect(|| Ok(one.clone()), 1, wrong) {
            break error;
        }
    };
    assert!(error.starts_with("cannot connect to 127.0.0.1:"), "{error}");
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        assert_within(start, TIMEOUT);
        send = send.or_else(|| connectors.connect(|| Ok(one.clone()), 1, handle).unwrap());
        recv = recv.or_else(|| listener.accept().unwrap());
    }
    assert!(matches!(garbage.read(&mut [0; 8]), Ok(0) | Err(_)));
    drop(listener);
    assert!(matches!(silent.read(&mut [0; 8]), Ok(0) | Err(_)));
}

#[test]
fn memory_of_a_process_is_flushed_by_reading_it() {
    // As for memory of a GPU, with memory of the host.
    let library = match crate::library::library() {
        Ok(library) => library,
        Err(why) => return skip(REQUIRE_LIBFABRIC, why),
    };
    let query = crate::library::Query {
        provider: Some("tcp"),
        source: Some(LOCALHOST),
        registration: true,
        remote_read: true,
        ..Default::default()
    };
    let infos = match library.infos(&query) {
        Ok(infos) => infos,
        Err(why) => return skip(REQUIRE_LIBFABRIC, why),
    };
    let (provider, domain) = infos.names()[0].clone();
    let nic =
        || Nic::flushing(infos.get(0).unwrap(), (&provider, &domain), options(false)).unwrap();
    let pair = connect(&nic(), &nic());
    let mut memory = vec![3u8; 4096];
    let region = pair.recv.register_readable(Memory::host(memory.as_mut_ptr(), memory.len()));
    let region = region.unwrap();
    assert_ne!(region, Region::NONE);
    let base = memory.as_mut_ptr();
    // SAFETY: the offset is inside of the memory.
    let flush = FlushBuffer { start: unsafe { base.add(100) }, region, base, registration: 0 };
    // SAFETY: the memory lives until the request is complete.
    let request = unsafe { pair.recv.flush(flush) }.unwrap().unwrap();
    wait(request, request);
    pair.recv.deregister(region, base as usize);
}
