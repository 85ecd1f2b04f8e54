//! Liveness of a connection's remote end according to the kernel (`TCP_INFO`).

use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The time since the last acknowledgement, if data was retransmitted and is still unacknowledged. A
/// peer with a full receive buffer still acknowledges probes, as does the kernel of a busy rank.
pub fn unacked_for(stream: &TcpStream) -> Option<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, and the descriptor is open while the stream
    // is.
    let failed = unsafe {
        let value = info.as_mut_ptr().cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, value, &mut length)
    };
    // SAFETY: all fields are integers, for which zero is valid.
    let info = unsafe { info.assume_init() };
    (failed == 0).then(|| stalled_for(&info)).flatten()
}

fn stalled_for(info: &libc::tcp_info) -> Option<Duration> {
    let stalled = info.tcpi_unacked > 0 && info.tcpi_retransmits > 0;
    stalled.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn retransmitted_data_without_acknowledgement_is_stalled() {
        // SAFETY: all fields are integers, for which zero is valid.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        info.tcpi_last_ack_recv = 1500;
        for (unacked, retransmits) in [(0, 0), (3, 0), (0, 2)] {
            (info.tcpi_unacked, info.tcpi_retransmits) = (unacked, retransmits);
            assert_eq!(stalled_for(&info), None, "{unacked} {retransmits}");
        }
        (info.tcpi_unacked, info.tcpi_retransmits) = (3, 2);
        assert_eq!(stalled_for(&info), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn a_peer_with_a_full_receive_buffer_is_not_unacked() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_peer, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(unacked_for(&stream), None);
    }
}
