//! The Corefile language, seen through the crate's own door.

mod common;
mod grammar;
mod imports;
mod properties;
mod real_files;
