//! The public interface over loopback, with the real kernel.

mod allocations;
mod listen;
mod support;
mod upstream;
