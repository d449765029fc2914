//! All of it against the real kernel, over 127.0.0.0/8 and ::1.

mod allocations;
mod listen;
mod support;
mod upstream;
