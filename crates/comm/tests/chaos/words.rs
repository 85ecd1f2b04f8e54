//! How a rank tells the test what became of it.

use regatta_comm::CommError;

/// What a rank says at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// The kind of the error; `None`: all went well.
    pub kind: Option<String>,
    /// The ranks that it names, by their numbers in the world, with their nodes.
    pub named: Vec<(usize, String)>,
    /// How long the call took that failed.
    pub took_ms: u64,
    /// The error in words.
    pub text: String,
    /// What came of joining again.
    pub again: String,
    /// What was left behind in the process.
    pub left: String,
}

const MARK: &str = "said\t";
const REASON: &str = "because of <";

fn names(text: &str) -> Vec<(usize, String)> {
    let named = text.split(',').filter_map(|one| one.split_once('@'));
    named.map(|(rank, host)| (rank.parse().unwrap(), host.to_owned())).collect()
}

impl Said {
    /// Of an error in a communicator of these ranks of the world.
    pub fn of(error: &CommError, members: &[usize], took_ms: u64) -> Self {
        let name = |peer: &regatta_comm::error::Peer| {
            let (rank, host) = (peer.rank as usize, peer.host.clone());
            match host.strip_suffix(", in the numbers of the world") {
                Some(host) => (rank, host.to_owned()),
                None => (members.get(rank).copied().unwrap_or(usize::MAX), host),
            }
        };
        let (kind, named) = match error {
            CommError::RankLost { peer, .. } => ("Lost", vec![name(peer)]),
            CommError::CallMismatch { ours_by, theirs_by, .. } => {
                ("Disagree", vec![name(theirs_by), name(ours_by)])
            }
            CommError::CountMismatch { from, to, .. } => ("Unmatched", vec![name(from), name(to)]),
            CommError::Timeout { missing, .. } => ("Late", missing.iter().map(name).collect()),
            CommError::LinkBroken { from, to, .. } => ("Path", vec![name(from), name(to)]),
            CommError::Aborted { by, .. } => ("Aborted", vec![name(by)]),
            CommError::InvalidCall { .. } => ("Shape", Vec::new()),
            CommError::Bootstrap { .. } => ("Join", Vec::new()),
            CommError::System { .. } => ("System", Vec::new()),
        };
        let text = error.to_string().replace(['\n', '\t'], " ");
        Self { kind: Some(kind.to_owned()), named, took_ms, text, ..Self::default() }
    }

    /// The ranks that are named.
    pub fn ranks(&self) -> Vec<usize> {
        self.named.iter().map(|(rank, _)| *rank).collect()
    }

    /// Why a rank gives up that was told this.
    pub fn as_reason(&self) -> String {
        format!("{REASON}{} {}>", self.kind.as_deref().unwrap_or("nothing"), self.names())
    }

    /// What the first was told of those who gave up because of each other.
    pub fn first(self) -> Self {
        let reason = self.text.split_once(REASON).and_then(|(_, rest)| rest.split_once('>'));
        let Some((kind, named)) = reason.and_then(|(reason, _)| reason.split_once(' ')) else {
            return self;
        };
        let kind = Some(kind.to_owned()).filter(|kind| kind != "nothing");
        Self { kind, named: names(named), ..self }
    }

    fn names(&self) -> String {
        let named = self.named.iter().map(|(rank, host)| format!("{rank}@{host}"));
        named.collect::<Vec<_>>().join(",")
    }

    pub fn write(&self) -> String {
        let named = self.names();
        format!(
            "\n{MARK}{}\t{}\t{}\t{}\t{}\t{}",
            self.kind.as_deref().unwrap_or("well"),
            named,
            self.took_ms,
            self.text,
            self.again,
            self.left
        )
    }

    /// Of all that a rank wrote.
    pub fn read(output: &str) -> Option<Self> {
        let line = output.lines().find_map(|line| line.strip_prefix(MARK))?;
        let words: Vec<&str> = line.split('\t').collect();
        Some(Self {
            kind: Some(words[0].to_owned()).filter(|kind| kind != "well"),
            named: names(words[1]),
            took_ms: words[2].parse().unwrap(),
            text: words[3].to_owned(),
            again: words[4].to_owned(),
            left: words[5].to_owned(),
        })
    }
}
