//! Tests of the template language through the public API.

mod data;
mod failures;
mod go;
mod properties;
