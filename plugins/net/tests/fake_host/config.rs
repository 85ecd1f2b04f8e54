//! What the plug-in says about itself, and what it does with invalid arguments and settings.

use std::ffi::CStr;
use std::process::Command;
use std::ptr::null_mut;

use regatta_plugin_abi::net::{HANDLE_BYTES, PTR_HOST};
use regatta_plugin_abi::{SUCCESS, SYSTEM_ERROR};
use regatta_testbed::assert_contains;

use crate::child::{Scenario, Task};
use crate::plugin::{Plugin, Table, VERSIONS, messages, with_table};
use crate::process::{Folder, Rank, command, providers, run_single};

/// Checks what NCCL reads of each NIC.
pub fn check_properties(plugin: &Plugin) {
    for device in 0..plugin.devices().unwrap() {
        let properties = plugin.properties(device).unwrap();
        assert!(!properties.name.is_null());
        // SAFETY: a C string that lives as long as the library.
        let name = unsafe { CStr::from_ptr(properties.name) }.to_str().unwrap();
        assert!(!name.is_empty());
        if !properties.pci_path.is_null() {
            // SAFETY: as above.
            let path = unsafe { CStr::from_ptr(properties.pci_path) }.to_str().unwrap();
            assert!(path.starts_with("/sys/devices/"), "{path}");
        }
        assert!(properties.speed > 0 && properties.max_comms > 0, "{properties:?}");
        // Messages of connection-oriented endpoints match in order.
        let is_connection_oriented =
            matches!(std::env::var("REGATTA_FABRIC").as_deref(), Ok("tcp" | "net"));
        assert_eq!(properties.max_recvs, if is_connection_oriented { 1 } else { 8 });
        assert_ne!(properties.pointer_support & PTR_HOST, 0);
        if !matches!(plugin.table, Table::V8(_)) {
            assert_eq!((properties.members.count, properties.members.devices[0]), (1, device));
            assert!(properties.max_p2p_bytes >= 1 << 30);
        }
    }
    let count = plugin.devices().unwrap();
    for device in [-1, count, i32::MAX] {
        assert!(plugin.properties(device).is_err(), "NIC {device}");
        assert!(plugin.listen(device).is_err(), "NIC {device}");
    }
    // The errors are of this function.
    messages().retain(|(_, text)| !text.contains("there is no NIC"));
}

/// Prints the number of NICs, whether one can be used, and the log. The library is opened twice.
pub fn report(task: &Task) {
    for _ in 0..2 {
        let mut plugin = Plugin::open(task.version);
        assert_eq!(plugin.init(), Ok(()));
        plugin.close();
    }
    let mut plugin = Plugin::open(task.version);
    assert_eq!(plugin.init(), Ok(()));
    // The test's name is on the first line.
    println!("\ndevices {}", plugin.devices().unwrap());
    let before = messages().len();
    match plugin.listen(0) {
        Ok((listener, _)) => {
            println!("listen {:?}", plugin.close_listen(listener));
        }
        Err(code) => println!("listen error {code}"),
    }
    println!("properties {}", plugin.properties(0).is_ok());
    let messages = messages();
    let level = |level: &i32| if *level == 2 { "warning" } else { "info" };
    messages[..before].iter().for_each(|(number, text)| println!("{}: {text}", level(number)));
    messages[before..].iter().for_each(|(_, text)| println!("error: {text}"));
}

/// Passes NULL to every function: it returns, with or without an error.
pub fn call_with_null(task: &Task) {
    let plugin = task.open();
    let (none, objects) = (null_mut(), null_mut());
    let (listener, mut handle) = plugin.listen(0).unwrap();
    let (mut out, mut done) = (none, 0);
    let (h, o) = (handle.as_mut_ptr().cast(), &raw mut out);
    let mut codes = Vec::new();
    // SAFETY: pointers are NULL or valid.
    with_table!(plugin.table, net => unsafe {
        codes.push((net.devices)(null_mut()));
        codes.push((net.get_properties)(0, null_mut()));
        codes.push((net.accept)(none, o, o));
        codes.push((net.accept)(listener.0, null_mut(), null_mut()));
        codes.push((net.reg_mr)(none, none, 0, PTR_HOST, o));
        codes.push((net.reg_mr)(none, none, 0, PTR_HOST, null_mut()));
        codes.push((net.reg_mr_dma_buf.unwrap())(none, none, 0, PTR_HOST, 0, -1, o));
        codes.push((net.iflush)(none, 1, objects, null_mut(), objects, o));
        codes.push((net.test)(none, &mut done, null_mut()));
        codes.push((net.test)(none, null_mut(), null_mut()));
        for close in [net.close_send, net.close_recv, net.close_listen] {
            assert_eq!(close(none), SUCCESS);
        }
        assert_eq!((net.dereg_mr)(none, none), SUCCESS);
    });
    // SAFETY: as above.
    unsafe {
        match plugin.table {
            Table::V8(net) => {
                codes.push((net.listen)(0, none, o));
                codes.push((net.listen)(0, h, null_mut()));
                codes.push((net.connect)(0, none, o, o));
                codes.push((net.connect)(0, h, null_mut(), null_mut()));
                codes.push((net.isend)(none, none, 0, 0, none, o));
                codes.push((net.isend)(none, none, -1, 0, none, o));
                codes.push((net.irecv)(none, 1, objects, null_mut(), null_mut(), objects, o));
                assert_eq!((net.init)(None), SUCCESS);
            }
            Table::V9(net) => {
                codes.push((net.isend)(none, none, 0, 0, none, null_mut()));
                codes.push((net.irecv)(none, 1, objects, null_mut(), null_mut(), objects, o));
                assert_eq!((net.init)(None), SUCCESS);
            }
            Table::V10(net) => {
                codes.push((net.connect)(0, null_mut(), none, o, o));
                codes.push((net.isend)(none, none, 0, 0, none, none, null_mut()));
                assert_eq!((net.init)(None, none), SUCCESS);
            }
            Table::V11(net) => {
                codes.push((net.functions.listen)(none, 0, none, o));
                codes.push((net.functions.connect)(none, 0, none, o, o));
                assert_eq!((net.functions.init)(null_mut(), 0, null_mut(), None, none), SUCCESS);
                assert_eq!((net.finalize)(none), SUCCESS);
            }
        }
    }
    assert!(codes.iter().all(|code| *code == SYSTEM_ERROR), "{codes:?}");
    null_arrays(&plugin);
    plugin.close_listen(listener).unwrap();
    let mut other = [0x5a; HANDLE_BYTES];
    assert_eq!(plugin.connect(0, &mut other), Err(SYSTEM_ERROR), "a handle of another plug-in");
}

/// NULL instead of arrays, and groups of impossible sizes, on a connection.
fn null_arrays(plugin: &Plugin) {
    let (listener, mut handle) = plugin.listen(0).unwrap();
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| plugin.connect(0, &mut handle).unwrap());
        recv = recv.or_else(|| plugin.accept(listener).unwrap());
    }
    let (send, recv, mut out) = (send.unwrap(), recv.unwrap(), null_mut());
    let (none, o, objects) = (null_mut(), &raw mut out, null_mut());
    let (numbers, lengths) = (null_mut(), null_mut());
    for count in [1, 0, -1, 9] {
        // SAFETY: NULL instead of all arrays.
        let code = unsafe {
            match plugin.table {
                Table::V8(net) => (net.irecv)(recv.0, count, objects, numbers, numbers, objects, o),
                Table::V9(net) => (net.irecv)(recv.0, count, objects, lengths, numbers, objects, o),
                Table::V10(net) => {
                    (net.irecv)(recv.0, count, objects, lengths, numbers, objects, objects, o)
                }
                Table::V11(net) => (net.functions.irecv)(
                    recv.0, count, objects, lengths, numbers, objects, objects, o,
                ),
            }
        };
        assert_eq!(code, SYSTEM_ERROR, "{count} receives");
        // SAFETY: as above.
        let code = with_table!(plugin.table, net => unsafe {
            (net.iflush)(recv.0, count, objects, numbers, objects, o)
        });
        assert!(code == SUCCESS || code == SYSTEM_ERROR);
        assert_eq!(out, none);
    }
    plugin.close_send(send).unwrap();
    plugin.close_recv(recv).unwrap();
    plugin.close_listen(listener).unwrap();
}

#[test]
fn null_is_an_error_and_not_a_crash() {
    let Some(provider) = providers().find(|provider| *provider != "shm") else { return };
    for version in VERSIONS {
        let folder = Folder::new();
        run_single(&super::task(Scenario::Null, version, 1, &folder), provider);
    }
}

/// In lines with a default of libfabric.
pub const DEFAULT: &str = " by default: ";

/// What the plug-in says with these variables.
fn settings(variables: &[(&str, &str)]) -> Vec<String> {
    let folder = Folder::new();
    let mut texts = [8, 11].map(|version| {
        let task = super::task(Scenario::Config, version, 1, &folder);
        let mut command: Command = command(&task);
        command.envs(variables.iter().copied());
        let text = Rank::start(&task, command).succeed();
        let is_own = |line: &&str| {
            ["devices ", "listen ", "properties ", "warning: ", "info: ", "error: "]
                .iter()
                .any(|start| line.starts_with(start))
        };
        text.lines().filter(is_own).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(texts[0], texts[1], "versions 8 and 11");
    std::mem::take(&mut texts[0])
}

#[test]
fn a_provider_is_described_in_one_line() {
    for provider in providers() {
        let mut lines = settings(&[("REGATTA_FABRIC", provider)]);
        lines.retain(|line| !line.contains(DEFAULT));
        let [devices, listen, properties, info] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((listen.as_str(), properties.as_str()), ("listen Ok(())", "properties true"));
        assert!(devices.starts_with("devices ") && devices != "devices 0");
        let provider = format!(", provider {provider}");
        assert_contains(
            info,
            ["info: NET/Regatta: libfabric ", &provider, "NIC", " Gb/s", "GPUDirect RDMA: "],
        );
    }
}

#[test]
fn defaults_of_a_provider_are_set_unless_the_user_has() {
    let is_default = |line: &&String| line.contains(DEFAULT);
    let rows = [
        ("tcp", "FI_TCP_STAGING_SBUF_SIZE", "=0 by default: "),
        ("tcp;ofi_rxm", "FI_OFI_RXM_EAGER_LIMIT", "=524288 by default: "),
    ];
    for (provider, variable, value) in rows {
        let lines = settings(&[("REGATTA_FABRIC", provider)]);
        let defaults: Vec<&String> = lines.iter().filter(is_default).collect();
        assert_eq!(defaults.len(), 1, "{lines:?}");
        assert_contains(defaults[0], ["info: NET/Regatta: ", variable, value]);
        let lines = settings(&[("REGATTA_FABRIC", provider), (variable, "65536")]);
        assert_eq!(lines.iter().filter(is_default).count(), 0, "{lines:?}");
    }
}

#[test]
fn without_a_provider_the_host_uses_its_own_transport() {
    let missing = [("REGATTA_LIBFABRIC", "/nonexistent/libfabric.so")];
    let unknown = [("REGATTA_FABRIC", "warp")];
    for (variables, reason) in [(missing, "/nonexistent/libfabric.so"), (unknown, "provider warp")]
    {
        let lines = settings(&variables);
        let [devices, listen, properties, warning, error @ ..] = &lines[..] else {
            panic!("{lines:?}")
        };
        assert_eq!(devices, "devices 0");
        assert_eq!((listen.as_str(), properties.as_str()), ("listen error 2", "properties false"));
        assert_contains(warning, ["warning: NET/Regatta: not used: "]);
        assert!(warning.contains(reason) || reason == "provider warp", "{warning}");
        assert!(error.iter().all(|line| line.starts_with("error: ")), "{error:?}");
    }
}

#[test]
fn a_required_provider_that_is_missing_fails_the_job() {
    let missing = ("REGATTA_LIBFABRIC", "/nonexistent/libfabric.so");
    let lines = settings(&[missing, ("REGATTA_NET", "require")]);
    let [devices, listen, properties, warning, error] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(devices, "devices 1");
    assert_eq!((listen.as_str(), properties.as_str()), ("listen error 2", "properties true"));
    assert_contains(
        warning,
        ["warning: NET/Regatta: ", "/nonexistent/libfabric.so", "REGATTA_NET=require"],
    );
    assert_contains(error, "/nonexistent/libfabric.so");
}

#[test]
fn an_invalid_setting_fails_the_job() {
    for (variable, value) in [("REGATTA_NET", "maybe"), ("REGATTA_NET_TIMEOUT", "soon")] {
        let lines = settings(&[(variable, value)]);
        let [devices, listen, _, warning, error] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((devices.as_str(), listen.as_str()), ("devices 1", "listen error 2"));
        for line in [warning, error] {
            assert_contains(line, [variable, value]);
        }
        assert!(!warning.contains("REGATTA_NET=require"), "{warning}");
    }
}

#[test]
fn it_can_be_turned_off() {
    for (variable, value) in [("REGATTA_NET", "off"), ("REGATTA_FABRIC", "off")] {
        let lines = settings(&[(variable, value)]);
        assert_eq!(lines[..2], ["devices 0", "listen error 2"]);
        assert_contains(&lines[3], [variable, "not used"]);
        assert_eq!(lines.iter().filter(|line| line.contains("not used")).count(), 1);
    }
}
