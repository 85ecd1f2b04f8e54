//! Whether the other end of a connection still answers, as the kernel knows.

use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// How long nothing was heard of the other end although something was sent to it, again and again.
/// One that has no room at the moment answers, and so does the kernel of a rank that computes.
pub fn unheard(stream: &TcpStream) -> Option<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as it is told that there are, and the
    // descriptor is open as long as the stream is.
    let failed = unsafe {
        let room = info.as_mut_ptr().cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, room, &mut length)
    };
    // SAFETY: they are numbers, which all zeros are, too.
    let info = unsafe { info.assume_init() };
    let waits = failed == 0 && info.tcpi_unacked > 0 && info.tcpi_retransmits > 0;
    waits.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn who_has_no_room_is_heard() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_other, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(unheard(&stream), None);
    }
}
