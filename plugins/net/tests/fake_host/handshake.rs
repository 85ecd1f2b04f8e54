//! Listeners and connections that never meet, and strangers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use regatta_fabric::net::handle::Handle;
use regatta_plugin_abi::SYSTEM_ERROR;

use crate::child::{Scenario, Task};
use crate::comm::Patience;
use crate::plugin::{HandleBytes, Object, Plugin, messages};
use crate::process::{Folder, Rank, command};
use crate::with_providers;

/// Longer than the timeout.
const LATE: Duration = Duration::from_millis(3500);

/// In one process: each case with a listener of its own.
pub fn run(task: &Task) {
    let plugin = task.open();
    never_connected(&plugin);
    listener_closed_before(&plugin);
    listener_closed_meanwhile(&plugin);
    listener_accepts_late(&plugin);
    strangers(&plugin);
    plugin.close();
}

fn address(handle: &HandleBytes) -> std::net::SocketAddr {
    Handle::decode(handle.first_chunk().unwrap()).unwrap().address
}

fn never_connected(plugin: &Plugin) {
    let (listener, _) = plugin.listen(0).unwrap();
    for _ in 0..100 {
        assert_eq!(plugin.accept(listener), Ok(None));
    }
    plugin.close_listen(listener).unwrap();
}

/// Calls `connect` until it fails.
fn connect_error(plugin: &Plugin, handle: &mut HandleBytes) {
    let patience = Patience::new();
    let error = loop {
        match plugin.connect(0, handle) {
            Ok(None) => patience.wait(|| "connect to a listener that was closed".to_owned()),
            other => break other,
        }
    };
    assert_eq!(error, Err(SYSTEM_ERROR));
    let messages = std::mem::take(&mut *messages());
    let (_, text) = messages.last().unwrap();
    assert!(text.contains("cannot connect to 127.0.0.1:"), "{text}");
}

fn listener_closed_before(plugin: &Plugin) {
    let (listener, mut handle) = plugin.listen(0).unwrap();
    plugin.close_listen(listener).unwrap();
    connect_error(plugin, &mut handle);
}

/// The kernel has accepted the connection, the listener has not.
fn listener_closed_meanwhile(plugin: &Plugin) {
    let (listener, mut handle) = plugin.listen(0).unwrap();
    for _ in 0..20 {
        assert_eq!(plugin.connect(0, &mut handle), Ok(None));
    }
    plugin.close_listen(listener).unwrap();
    connect_error(plugin, &mut handle);
}

/// A listener that is not asked to accept for longer than the timeout: its process may be busy or stopped.
fn listener_accepts_late(plugin: &Plugin) {
    let (listener, mut handle) = plugin.listen(0).unwrap();
    let start = Instant::now();
    while start.elapsed() < LATE {
        assert_eq!(plugin.connect(0, &mut handle), Ok(None), "{:?}", messages());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (send, recv) = connect_pair(plugin, listener, &mut handle);
    plugin.close_listen(listener).unwrap();
    plugin.close_send(send).unwrap();
    plugin.close_recv(recv).unwrap();
}

/// Those who connect to the port without the token are ignored, however many they are.
fn strangers(plugin: &Plugin) {
    let (listener, mut handle) = plugin.listen(0).unwrap();
    let address = address(&handle);
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[0xff; 4096],
        &[0, 0, 0, 0],
        &[3, 0, 0, 0, b'R', b'G'],
        b"",
    ];
    let mut streams: Vec<TcpStream> = Vec::new();
    for bytes in garbage {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        streams.push(stream);
        assert_eq!(plugin.accept(listener), Ok(None));
    }
    // This one is gone at once.
    drop(TcpStream::connect(address).unwrap());
    let mut wrong = handle;
    wrong[30] ^= 1;
    let patience = Patience::new();
    while plugin.connect(0, &mut wrong) == Ok(None) {
        assert_eq!(plugin.accept(listener), Ok(None));
        patience.wait(|| "the rejection of a wrong token".to_owned());
    }
    let (send, recv) = connect_pair(plugin, listener, &mut handle);
    // Those with an invalid message were disconnected; the others are with the listener.
    plugin.close_listen(listener).unwrap();
    for mut stream in streams {
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
    plugin.close_send(send).unwrap();
    plugin.close_recv(recv).unwrap();
}

fn connect_pair(plugin: &Plugin, listener: Object, handle: &mut HandleBytes) -> (Object, Object) {
    let (mut send, mut recv, patience) = (None, None, Patience::new());
    loop {
        send = send.or_else(|| plugin.connect(0, handle).unwrap());
        recv = recv.or_else(|| plugin.accept(listener).unwrap());
        match (send, recv) {
            (Some(send), Some(recv)) => return (send, recv),
            _ => patience.wait(|| "a connection".to_owned()),
        }
    }
}

#[test]
fn handshakes_that_fail_do_not_hang() {
    with_providers(|provider| {
        if provider == "shm" {
            return;
        }
        let folder = Folder::new();
        let task = super::task(Scenario::Handshake, 10, 1, &folder);
        let mut command = command(&task);
        command.env("REGATTA_FABRIC", provider).env("REGATTA_NET_TIMEOUT", "3");
        Rank::start(&task, command).succeed();
    });
}
