//! Pure: text, records or statuses in, report out.

pub mod comms;
pub mod comms_status;
pub mod net_log;
