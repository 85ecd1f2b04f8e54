//! Results as text: nccl-tests' format and CSV. Our own documents are JSON, see
//! [`regatta_model::document`].

mod csv;
mod format;
mod nccl_tests;

pub use csv::{HEADER as CSV_HEADER, csv, quoted};
pub use nccl_tests::{
    TableLayout, footer, header, nccl_tests, preamble, program_name, row, totals,
};
