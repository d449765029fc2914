//! The plugins, a folder each: setup, handler, counters, line of `explain`, tests and page. No folder imports another's.
//!
//! [`table`] has a row for each, [`spec`] says how its directives are read and built, [`step`] is what acts around the
//! sources, [`lasting`] what is kept over reloads.

pub mod acl;
pub mod bind;
pub mod bufsize;
pub mod cache;
pub mod debug;
pub mod errors;
pub mod forward;
pub mod header;
pub mod health;
pub mod hosts;
pub(crate) mod label;
pub mod lasting;
pub mod loadbalance;
pub mod log;
pub mod r#loop;
pub mod metadata;
pub mod minimal;
pub mod multisocket;
pub mod nsid;
pub mod prometheus;
pub mod ready;
pub mod reload;
pub mod rewrite;
pub mod root;
pub mod spec;
pub mod step;
pub(crate) mod table;
pub mod template;
pub mod timeouts;
pub mod tls;
pub mod whoami;

use std::net::SocketAddr;
use std::time::Instant;

use crate::failure::Failure;
use crate::observe::counters::Proto;
pub use hosts::Tables;

/// Who asks, how and when: what a plugin may know besides the query.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'b> {
    /// When the batch that the query came in was taken up.
    pub now: Instant,
    /// The client.
    pub client: SocketAddr,
    /// The address it asked.
    pub server: SocketAddr,
    /// The client's transport.
    pub proto: Proto,
    /// Which thread counts the query.
    pub writer: usize,
    /// What the batch has found of the hosts tables so far.
    pub tables: &'b Tables,
}

/// What became of a query in one plugin.
#[derive(Debug)]
pub enum Lookup {
    /// The reply is written.
    Answer,
    /// The reply is written, and CNAMEs in its answer section are to be followed.
    Follow,
    /// Not mine: the next plugin is asked; the reply is as it was.
    Pass,
    /// Mine, but there is no answer.
    Fail(Failure),
}
