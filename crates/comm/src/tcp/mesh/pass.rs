//! One round of all connections.

use super::{Mesh, Way};

/// So often in a row those who have something to say wait for others, of whom less is kept.
const PUT_OFF: u32 = 64;

/// Which connections broke, and how.
type Broken = Vec<(u32, Way, String)>;

impl Mesh {
    /// Moves what can be moved without waiting.
    pub fn pass(&mut self) {
        let mut broken = match &mut self.fabric {
            Some(fabric) => fabric.pass(&mut self.channels),
            None => Vec::new(),
        };
        let moved = self.write(&mut broken) | self.read(&mut broken);
        // Somebody waits, and what it waits for may come after all that is kept already: to read no
        // further would be to wait for ever. Only others, of whom less is kept, come first.
        if !moved || self.put_off >= PUT_OFF {
            self.put_off = 0;
            self.read_on(&mut broken);
        } else {
            self.put_off += 1;
        }
        for (rank, way, why) in broken {
            self.broke(rank, way, why);
        }
    }

    /// Whether anything went.
    fn write(&mut self, broken: &mut Broken) -> bool {
        let mut moved = false;
        for (rank, outgoing) in &mut self.outgoing {
            match outgoing.write(&mut self.channels) {
                Ok(went) => moved |= went,
                Err(error) => {
                    broken.push((*rank, Way::Out, std::io::Error::from(error).to_string()));
                }
            }
        }
        moved
    }

    /// Whether anything came.
    fn read(&mut self, broken: &mut Broken) -> bool {
        let mut moved = false;
        for (rank, incoming) in &mut self.incoming {
            match incoming.read(&mut self.channels, self.keep) {
                Ok(came) => moved |= came,
                Err(why) => broken.push((*rank, Way::In, why)),
            }
        }
        moved
    }

    /// Reads from those of whom more is kept than should be, a message each.
    fn read_on(&mut self, broken: &mut Broken) {
        let keep = self.keep;
        for (rank, incoming) in self.incoming.iter_mut().filter(|(_, i)| i.is_full(keep)) {
            if let Err(why) = incoming.read(&mut self.channels, usize::MAX) {
                broken.push((*rank, Way::In, why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::tcp::frame::{Head, Key};
    use crate::tcp::mesh::Posted;
    use crate::transport::{Landing, Lane, Ticket};

    const LENGTH: usize = 1000;

    /// A connection from a rank, of which this is the far end.
    fn connect(mesh: &mut Mesh, rank: u32) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        mesh.incoming.entry(rank).or_default().add(0, listener.accept().unwrap().0);
        far
    }

    fn key(tag: u32) -> Key {
        Key::new(1, Lane::Tag(tag), 0)
    }

    /// A message with a tag, which its bytes are.
    fn say(far: &mut TcpStream, tag: u32) {
        let head = Head { key: key(tag), length: LENGTH as u64, what: 0, stripes: 1 };
        far.write_all(&[&head.encode()[..], &[tag as u8; LENGTH]].concat()).unwrap();
    }

    fn ask(mesh: &mut Mesh, rank: u32, tag: u32, into: &mut [u8]) -> Ticket {
        let (start, length, landing) = (into.as_mut_ptr(), into.len(), Landing::Replace);
        let ticket = Ticket(0);
        mesh.receive(
            rank,
            Posted { key: key(tag), what: 0, ticket, start, length, landing, with: None },
        )
    }

    /// Passes until all have come.
    fn wait(mesh: &mut Mesh, tickets: &[Ticket]) {
        let mut done = Vec::new();
        while !tickets.iter().all(|ticket| done.contains(ticket)) {
            mesh.pass();
            mesh.take_done(1, &mut done);
        }
    }

    #[test]
    fn what_is_asked_for_comes_however_much_is_before_it() {
        let mut mesh = Mesh::new(2 * LENGTH);
        let mut far = connect(&mut mesh, 7);
        (0..20).for_each(|tag| say(&mut far, tag));
        for tag in (0..20).rev() {
            let mut into = [99; LENGTH];
            let ticket = ask(&mut mesh, 7, tag, &mut into);
            wait(&mut mesh, &[ticket]);
            assert!(into.iter().all(|byte| *byte == tag as u8), "tag {tag}");
        }
    }

    #[test]
    fn others_come_first_when_much_is_kept_of_one() {
        let mut mesh = Mesh::new(2 * LENGTH);
        let (mut full, mut other) = (connect(&mut mesh, 7), connect(&mut mesh, 8));
        (0..20).for_each(|tag| say(&mut full, tag));
        let (mut last, mut one) = ([0; LENGTH], [0; LENGTH]);
        let awaited = ask(&mut mesh, 7, 19, &mut last);
        while !mesh.incoming[&7].is_full(2 * LENGTH) {
            mesh.pass();
        }
        let kept = |mesh: &Mesh| (0..50).find(|n| !mesh.incoming[&7].is_full(n * LENGTH)).unwrap();
        let before = kept(&mesh);
        say(&mut other, 3);
        let asked = ask(&mut mesh, 8, 3, &mut one);
        wait_for_readable(&mesh, 8);
        // It takes one round at least to read a head, and one to read what follows.
        mesh.pass();
        assert_eq!(kept(&mesh), before);
        wait(&mut mesh, &[asked, awaited]);
        assert_eq!((last, one), ([19; LENGTH], [3; LENGTH]));
    }

    fn wait_for_readable(mesh: &Mesh, rank: u32) {
        let stream = mesh.incoming[&rank].streams().next().unwrap();
        while stream.peek(&mut [0]).unwrap() == 0 {}
    }
}
