//! System calls that fail, as in containers and emulators.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{c_long, sock_filter};

/// Has system calls of a command and of its children fail with these errors.
pub fn refuse(command: &mut Command, calls: &[(c_long, i32)]) {
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (call, error) in calls {
        // The next instruction if the number is that of the call, otherwise the one after it.
        let equal = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32);
        filter.push(sock_filter { jf: 1, ..equal });
        filter
            .push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | *error as u32));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    // SAFETY: only system calls are made between fork and exec, on memory allocated before.
    unsafe { command.pre_exec(move || install(&mut filter)) };
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn install(filter: &mut [sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which points to all of the filter.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}
