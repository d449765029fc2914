//! Tests of the Corefile language through the crate's public API.

mod common;
mod grammar;
mod imports;
mod properties;
mod real_files;
