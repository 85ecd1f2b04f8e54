//! Opens a connection to a rank and proves the job's secret. It waits, but not longer than it may.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use regatta_wire::link::{Link, Role, Step, Timing};
use regatta_wire::secret::{Secret, random};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// How long at most until it is looked whether there is any use in it still.
const LOOK: Duration = Duration::from_millis(50);

/// Whom to call, and how.
pub struct Dial<'a> {
    /// Where.
    pub to: SocketAddr,
    /// From which address of this node.
    pub from: Option<IpAddr>,
    /// The job's.
    pub secret: &'a Secret,
    /// Of the connection.
    pub timing: Timing,
    /// Until when.
    pub until: Instant,
    /// Whether there is no use in it any more.
    pub stop: &'a dyn Fn() -> bool,
}

/// An open connection whose other side is of this job.
pub struct Line {
    /// It does not block.
    pub stream: TcpStream,
    /// Its link, ready.
    pub link: Link,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoLine {
    /// Nobody is there, or not yet.
    Nobody(String),
    /// Somebody is there whom one must not talk to.
    Stranger(String),
}

impl Dial<'_> {
    /// Connects, and is through with the handshake.
    pub fn open(&self) -> Result<Line, NoLine> {
        let nobody = |error: std::io::Error| NoLine::Nobody(error.to_string());
        let stream = self.connect().map_err(nobody)?;
        let nonce = random().map_err(nobody)?;
        let link = Link::new(Role::Caller, self.secret, nonce, self.timing, Instant::now());
        let mut line = Line { stream, link };
        let ready = |steps: &[Step]| steps.contains(&Step::Ready).then_some(());
        self.converse(&mut line, &mut [0; 4 << 10], true, ready)?;
        Ok(line)
    }

    /// Says something and waits for the answer.
    pub fn ask(&self, line: &mut Line, what: &[u8]) -> Result<Vec<u8>, NoLine> {
        line.link.send(what);
        self.converse(line, &mut [0; 64 << 10], true, frame)
    }

    /// The same, and reads nothing of what comes after the answer, which is for somebody else. Nor
    /// does it show signs of life: the other side may take them for messages already.
    pub fn ask_last(&self, line: &mut Line, what: &[u8]) -> Result<Vec<u8>, NoLine> {
        line.link.send(what);
        self.converse(line, &mut [0; 1], false, frame)
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        loop {
            let error = match self.connect_once() {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // A cable may be back in a moment.
            let away = [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
            if !away.contains(&error.kind()) || Instant::now() >= self.until || (self.stop)() {
                return Err(error);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn connect_once(&self) -> std::io::Result<TcpStream> {
        let family = if self.to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if let Some(from) = self.from.filter(|from| from.is_ipv4() == self.to.is_ipv4()) {
            bind(&socket, &SocketAddr::new(from, 0))?;
        }
        let stream = TcpStream::from(socket);
        tune(&stream, self.timing.lost_after);
        match connect(&stream, &self.to) {
            Ok(()) => return Ok(stream),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        while !self.wait(&stream, PollFlags::OUT)? {}
        match sockopt::socket_error(&stream)? {
            Ok(()) => Ok(stream),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes what is to be written and reads until something is there.
    fn converse<T>(
        &self,
        line: &mut Line,
        buffer: &mut [u8],
        beats: bool,
        found: impl Fn(&[Step]) -> Option<T>,
    ) -> Result<T, NoLine> {
        let nobody = |error: std::io::Error| NoLine::Nobody(error.to_string());
        let mut steps = Vec::new();
        loop {
            write(line).map_err(nobody)?;
            match line.stream.read(buffer) {
                Ok(0) => return Err(NoLine::Nobody("it closed the connection".to_owned())),
                Ok(count) => {
                    let now = Instant::now();
                    let taken = line.link.receive(&buffer[..count], now, &mut steps);
                    // What is pending then tells the other side why.
                    write(line).map_err(nobody)?;
                    taken.map_err(|error| NoLine::Stranger(error.to_string()))?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait(&line.stream, PollFlags::IN).map_err(nobody)?;
                    if beats {
                        line.link.beat(Instant::now());
                    }
                }
                Err(error) => return Err(nobody(error)),
            }
            if let Some(found) = found(&steps) {
                return Ok(found);
            }
        }
    }

    /// A short while. True: something happened.
    fn wait(&self, stream: &TcpStream, flags: PollFlags) -> std::io::Result<bool> {
        if Instant::now() >= self.until || (self.stop)() {
            return Err(std::io::Error::new(ErrorKind::TimedOut, "no answer in time"));
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
        match poll(&mut [PollFd::new(stream, flags)], Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The first frame.
fn frame(steps: &[Step]) -> Option<Vec<u8>> {
    let frame = |step: &Step| match step {
        Step::Frame(frame) => Some(frame.clone()),
        Step::Ready => None,
    };
    steps.iter().find_map(frame)
}

fn write(line: &mut Line) -> std::io::Result<()> {
    while !line.link.pending().is_empty() {
        match line.stream.write(line.link.pending()) {
            Ok(count) => line.link.sent(count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // So little fits a new connection, or it goes out in the next round.
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes a socket fit for collectives. Its buffers are left to the kernel: it makes them larger as
/// needed, and what may be asked for is on most systems far below that. While nothing comes, the
/// kernel sees to it that the path is still there.
pub fn tune(stream: &TcpStream, lost_after: Duration) {
    let whole = |part: Duration| Duration::from_secs(part.as_secs().max(1));
    let (idle, between) = (whole(lost_after / 2), whole(lost_after / 8));
    let tries = lost_after.saturating_sub(idle).as_secs() / between.as_secs();
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, idle);
    let _ = sockopt::set_tcp_keepintvl(stream, between);
    let _ = sockopt::set_tcp_keepcnt(stream, tries.clamp(1, 100) as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a connection in, slowly, and gives all that comes after that.
    fn taken_slowly(listener: std::net::TcpListener, secret: Secret, timing: Timing) -> Vec<u8> {
        let (mut stream, _) = listener.accept().unwrap();
        let now = Instant::now();
        let mut link = Link::new(Role::Listener, &secret, random().unwrap(), timing, now);
        let (mut steps, mut buffer) = (Vec::new(), [0; 4096]);
        let say = |link: &mut Link, stream: &mut TcpStream| {
            stream.write_all(link.pending()).unwrap();
            link.sent(link.pending().len());
        };
        while frame(&steps).is_none() {
            say(&mut link, &mut stream);
            let count = stream.read(&mut buffer).unwrap();
            link.receive(&buffer[..count], Instant::now(), &mut steps).unwrap();
        }
        std::thread::sleep(Duration::from_millis(300));
        link.send(b"taken");
        say(&mut link, &mut stream);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest
    }

    #[test]
    fn nothing_but_messages_follows_the_last_question() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let (secret, limit) = (Secret::generate().unwrap(), Duration::from_secs(10));
        let beat = Duration::from_millis(20);
        let timing = Timing { handshake: limit, beat, lost_after: limit };
        let theirs = secret.clone();
        let other = std::thread::spawn(move || taken_slowly(listener, theirs, timing));
        let until = Instant::now() + limit;
        let dial = Dial { to, from: None, secret: &secret, timing, until, stop: &|| false };
        let mut line = dial.open().unwrap();
        assert_eq!(dial.ask_last(&mut line, b"hello").unwrap(), b"taken");
        line.stream.write_all(b"message").unwrap();
        drop(line);
        assert_eq!(other.join().unwrap(), b"message");
    }
}
