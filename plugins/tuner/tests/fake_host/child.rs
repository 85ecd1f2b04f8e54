//! What the child processes do.

use std::path::PathBuf;
use std::ptr::null_mut;

use regatta_nccl_tuning::{Communicator, Table};

use crate::plan::{COMMUNICATORS, Random, expected, request, table};
use crate::plugin::{Context, MESSAGES, Plugin, Request};

/// Environment variable with the child's task.
pub const VARIABLE: &str = "REGATTA_TEST_FAKE_HOST";
/// Calls of a thread.
const CALLS: usize = 2000;

/// The task of a child process.
#[derive(Debug)]
pub struct Child {
    pub scenario: Scenario,
    pub seed: u64,
    pub version: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Several communicators, each with several threads; the library is closed and opened again.
    Schedule,
    /// The table changes, and vanishes, between communicators.
    Changes,
    /// There is no table.
    Disabled,
    /// The table cannot be used.
    Damaged,
    /// Selections are explained.
    Explain,
    /// Forks after the first communicator.
    Fork,
}

const SCENARIOS: [Scenario; 6] = [
    Scenario::Schedule,
    Scenario::Changes,
    Scenario::Disabled,
    Scenario::Damaged,
    Scenario::Explain,
    Scenario::Fork,
];

impl Child {
    pub fn to_text(&self) -> String {
        let Self { scenario, seed, version } = self;
        format!("{} {seed} {version}", *scenario as usize)
    }

    pub fn from_env() -> Option<Self> {
        let text = std::env::var(VARIABLE).ok()?;
        let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [scenario, seed, version] = numbers[..] else { panic!("{text}") };
        Some(Self { scenario: SCENARIOS[scenario as usize], seed, version: version as u32 })
    }

    pub fn run(&self) {
        match self.scenario {
            Scenario::Schedule => self.schedule(),
            Scenario::Changes => self.changes(),
            Scenario::Disabled => self.disabled(),
            Scenario::Damaged => self.damaged(),
            Scenario::Explain => self.explain(),
            Scenario::Fork => self.fork(),
        }
    }

    fn schedule(&self) {
        let table = table(self.seed);
        for round in 0..2 {
            let plugin = Plugin::open(self.version);
            let mut random = Random::new(self.seed ^ round);
            let communicators: Vec<Communicator> =
                (0..6).map(|_| random.pick(&COMMUNICATORS)).collect();
            std::thread::scope(|scope| {
                for (index, communicator) in (0..).zip(communicators) {
                    let (plugin, table) = (&plugin, &table);
                    let random = Random::new(self.seed ^ (round << 32) ^ (index << 40));
                    scope.spawn(move || drive(plugin, table, communicator, random));
                }
            });
            plugin.close();
        }
        let messages = MESSAGES.lock().unwrap();
        let loaded =
            messages.iter().filter(|(level, text)| *level == 3 && text.contains("60 rows"));
        assert_eq!(loaded.count(), 1, "the table is read once: {messages:?}");
        assert!(messages.iter().all(|(level, _)| *level == 3));
    }

    fn changes(&self) {
        let path = table_path();
        let table = table(self.seed);
        let plugin = Plugin::open(self.version);
        let communicator = COMMUNICATORS[1];
        let others = [Some("regatta-nccl-tuning 1\n"), Some("\0damaged"), None];
        for (round, other) in (0..).zip([None].into_iter().chain(others.into_iter().map(Some))) {
            match other {
                None => {}
                Some(Some(text)) => std::fs::write(&path, text).unwrap(),
                Some(None) => std::fs::remove_file(&path).unwrap(),
            }
            drive(&plugin, &table, communicator, Random::new(self.seed ^ round));
        }
        plugin.close();
        let plugin = Plugin::open(self.version);
        drive(&plugin, &table, communicator, Random::new(self.seed));
    }

    fn disabled(&self) {
        let plugin = Plugin::open(self.version);
        let context = plugin.init(16, 2);
        assert_eq!(context, Context::NULL);
        let mut random = Random::new(self.seed);
        check(&plugin, &Table::default(), COMMUNICATORS[0], context, request(&mut random));
        plugin.destroy(context);
        assert!(MESSAGES.lock().unwrap().is_empty());
    }

    fn damaged(&self) {
        let plugin = Plugin::open(self.version);
        for _ in 0..3 {
            assert_eq!(plugin.init(16, 2), Context::NULL);
        }
        let messages = MESSAGES.lock().unwrap();
        let [(2, text)] = &messages[..] else { panic!("one warning: {messages:?}") };
        let path = table_path();
        assert!(text.contains(path.to_str().unwrap()) && text.contains("unset REGATTA_TUNER"));
        println!("warning: {text}");
    }

    fn explain(&self) {
        let plugin = Plugin::open(self.version);
        let context = plugin.init(16, 2);
        assert_eq!(plugin.init(4, 1), Context::NULL);
        let costs = vec![5.0, 6.0, 7.0, 4.0, -1.0, 8.0];
        let ask = |function, bytes, pipe_ops| {
            let (algorithms, protocols, registered) = (2, 3, 0);
            let costs = costs.clone();
            let mut request =
                Request { function, bytes, pipe_ops, costs, algorithms, protocols, registered };
            plugin.get_coll_info(context, &mut request);
        };
        for _ in 0..2 {
            ask(4, 1 << 20, 1);
            ask(4, 1 << 21, 1);
            ask(4, 1 << 20, 3);
            ask(2, 1 << 20, 1);
            ask(0, 8, 1);
        }
        let messages = MESSAGES.lock().unwrap();
        assert!(messages.iter().all(|(level, _)| *level == 3));
        // The test's name is on the first line.
        messages.iter().skip(1).for_each(|(_, text)| print!("\ninfo: {text}"));
        println!();
    }

    fn fork(&self) {
        let (plugin, table) = (Plugin::open(self.version), table(self.seed));
        drive(&plugin, &table, COMMUNICATORS[0], Random::new(self.seed));
        // SAFETY: the fork calls only the plug-in, and exits.
        match unsafe { libc::fork() } {
            0 => {
                drive(&plugin, &table, COMMUNICATORS[1], Random::new(self.seed));
                // SAFETY: ends the fork.
                unsafe { libc::_exit(0) };
            }
            fork => {
                let mut status = -1;
                // SAFETY: `status` is valid for writes.
                assert_eq!(unsafe { libc::waitpid(fork, &mut status, 0) }, fork);
                assert_eq!(status, 0);
            }
        }
    }
}

fn table_path() -> PathBuf {
    std::env::var_os("REGATTA_TUNER").unwrap().into()
}

/// Opens a communicator, asks for random collectives in two threads, and closes it.
fn drive(plugin: &Plugin, table: &Table, communicator: Communicator, mut random: Random) {
    let context = plugin.init(communicator.ranks as usize, communicator.nodes as usize);
    let has_rows = table.rows.iter().any(|row| row.communicator == communicator);
    assert_eq!(context != Context::NULL, has_rows);
    let seeds = [random.next(), random.next()];
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(move || {
                let context = context;
                let mut random = Random::new(seed);
                for _ in 0..CALLS {
                    check(plugin, table, communicator, context, request(&mut random));
                }
                null_pointers(plugin, context, &request(&mut random));
            });
        }
    });
    plugin.destroy(context);
}

/// Asks, and checks what the plug-in did.
fn check(
    plugin: &Plugin,
    table: &Table,
    communicator: Communicator,
    context: Context,
    mut request: Request,
) {
    let expected = expected(table, communicator, &request);
    let before = request.costs.clone();
    // Entries after the table must not change.
    request.costs.extend([7.0; 32]);
    let channels = plugin.get_coll_info(context, &mut request);
    let chosen = expected.map(|choice| {
        (choice.algorithm as i32 * request.protocols + choice.protocol as i32) as usize
    });
    for (index, (after, before)) in request.costs.iter().zip(&before).enumerate() {
        match chosen == Some(index) {
            true => assert_eq!(*after, 0.0, "{expected:?} {request:?}"),
            false => assert_eq!(after.to_bits(), before.to_bits(), "{expected:?} {request:?}"),
        }
    }
    assert!(request.costs[before.len()..].iter().all(|cost| *cost == 7.0));
    let number = expected.map_or(0, |choice| i32::from(choice.channels));
    assert_eq!(channels, if number > 0 { number } else { -7 });
}

/// No pointer must be valid.
fn null_pointers(plugin: &Plugin, context: Context, request: &Request) {
    let mut costs = request.costs.clone();
    // SAFETY: NULL is allowed, and so are numbers that no table has.
    unsafe {
        plugin.get(context, request, null_mut(), null_mut());
        plugin.get(context, request, costs.as_mut_ptr(), null_mut());
        plugin.get(Context::NULL, request, costs.as_mut_ptr(), null_mut());
        for (algorithms, protocols) in [(0, 3), (7, 0), (-1, 3), (7, -1), (i32::MAX, i32::MAX)] {
            let request = Request { algorithms, protocols, ..request.clone() };
            plugin.get(context, &request, costs.as_mut_ptr(), null_mut());
        }
    }
}
