//! Results as text: in nccl-tests' form and as values between commas. Our own documents are JSON,
//! see [`regatta_model::document`].

mod csv;
mod nccl_tests;
mod number;

pub(crate) use csv::quoted;
pub use csv::{COLUMNS as CSV_COLUMNS, csv};
pub use nccl_tests::{Layout, footer, head, nccl_tests, preamble, program_name, row};
