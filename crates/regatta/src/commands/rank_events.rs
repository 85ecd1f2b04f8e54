//! Events of a command that launches its own ranks: rank 0 emits them, and the parent process or, without
//! one, rank 0 itself reports them to the user.

use anyhow::Result;
use regatta_launch::channel::{self, ChannelError, RankEnd};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::launch::RankObserver;

/// Reports events to the user.
pub trait EventReporter {
    /// An event.
    type Event: Serialize + DeserializeOwned;

    /// Whether the reporter itself prints the path of the run folder at the end.
    const PRINTS_RUN_DIR: bool = false;

    /// Reports an event.
    fn on_event(&mut self, event: Self::Event);

    /// The text of an event for the log of its rank, possibly empty.
    fn log_text(&mut self, _: &Self::Event) -> String {
        String::new()
    }

    /// Reports that an event could not be received.
    fn on_event_error(&mut self, error: ChannelError);

    /// Reports that a signal was forwarded to the ranks.
    fn on_signal(&mut self, _signal: i32) {}

    /// Erases progress from the terminal before other output.
    fn hide_progress(&mut self) {}

    /// Reports that all ranks have exited; called at least once.
    fn on_exit(&mut self) {}

    /// Why the job failed although all ranks exited successfully.
    fn failure(&self) -> Option<String> {
        None
    }
}

impl<R: EventReporter> RankObserver for R {
    fn on_line(&mut self) {
        self.hide_progress();
    }

    fn on_frame(&mut self, rank: u32, bytes: &[u8]) -> String {
        match channel::decode_from(rank, bytes) {
            Ok(event) => {
                let text = self.log_text(&event);
                self.on_event(event);
                text
            }
            Err(error) => {
                self.on_event_error(error);
                String::new()
            }
        }
    }

    fn on_signal(&mut self, signal: i32) {
        EventReporter::on_signal(self, signal);
    }

    fn on_exit(&mut self) {
        EventReporter::on_exit(self);
    }

    fn failure(&self) -> Option<String> {
        EventReporter::failure(self)
    }

    fn prints_run_dir(&self) -> bool {
        R::PRINTS_RUN_DIR
    }
}

/// Where the events of a rank go.
pub enum EventSink<R> {
    /// Ranks other than 0.
    Discard,
    /// The parent process.
    Parent {
        channel: RankEnd,
        /// The first event that could not be sent.
        error: Option<ChannelError>,
    },
    /// This process.
    Local(Box<R>),
}

impl<R: EventReporter> EventSink<R> {
    /// The sink of a rank, with a channel if a parent process launched it.
    pub fn new(
        rank: u32,
        channel: Option<RankEnd>,
        reporter: impl FnOnce() -> Result<R>,
    ) -> Result<Self> {
        Ok(match (rank, channel) {
            (0, Some(channel)) => Self::Parent { channel, error: None },
            (0, None) => Self::Local(Box::new(reporter()?)),
            _ => Self::Discard,
        })
    }

    pub fn emit(&mut self, event: R::Event) {
        match self {
            Self::Discard | Self::Parent { error: Some(_), .. } => {}
            Self::Parent { channel, error } => *error = channel.send(&event).err(),
            Self::Local(reporter) => reporter.on_event(event),
        }
    }

    /// The reporter of this process, or the error of sending an event.
    pub fn finish(self) -> Result<Option<R>, ChannelError> {
        match self {
            Self::Local(reporter) => Ok(Some(*reporter)),
            Self::Parent { error: Some(error), .. } => Err(error),
            Self::Parent { .. } | Self::Discard => Ok(None),
        }
    }
}
