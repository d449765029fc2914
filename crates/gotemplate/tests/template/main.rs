//! The template language through its public face.

mod data;
mod failures;
mod go;
mod properties;
