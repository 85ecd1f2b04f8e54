//! Events of a command that launches its own ranks: rank 0 emits them, and the parent process or, without
//! one, rank 0 itself reports them to the user.

use anyhow::Result;
use regatta_launch::channel::{self, ChannelError, RankEnd};
use regatta_launch::lines::MergedLine;
use regatta_launch::status::{FrameRecord, JobObserver, JobStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reports events to the user.
pub trait EventReporter {
    /// An event.
    type Event: Serialize + DeserializeOwned;

    /// Reports an event.
    fn on_event(&mut self, event: Self::Event);

    /// Tells what an event adds to the run folder.
    fn record(&mut self, _: &Self::Event, _: &mut FrameRecord) {}

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

/// Decodes the events of a job for their reporter.
pub struct RankEvents<'a, R>(pub &'a mut R);

impl<R: EventReporter> JobObserver for RankEvents<'_, R> {
    fn on_line(&mut self, _: &MergedLine) -> bool {
        self.0.hide_progress();
        true
    }

    fn flush(&mut self) -> bool {
        self.0.on_exit();
        true
    }

    fn on_frame(&mut self, rank: u32, bytes: &[u8], record: &mut FrameRecord) {
        match channel::decode_from(rank, bytes) {
            Ok(event) => {
                self.0.record(&event, record);
                self.0.on_event(event);
            }
            Err(error) => self.0.on_event_error(error),
        }
    }

    fn on_status(&mut self, status: &JobStatus<'_>) {
        if let JobStatus::Signal { signal, .. } = status {
            self.0.on_signal(*signal);
        }
    }

    fn failure(&self) -> Option<String> {
        self.0.failure()
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
