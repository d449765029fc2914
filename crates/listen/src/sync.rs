//! Synchronisation primitives of the files that loom models check; the models compile these files
//! with loom's instead.

pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use sockets::Waker;
