//! Measures the cost of a server's first lists: its processor time from its start until it is
//! ready, with a scripted API.
//!
//! The real API takes most of the time of such a start, and shares the cores with its clients. Here
//! the lists are ready, and are sent in chunks of the size in which Go's HTTP server writes a
//! watch. The count is the server's own CPU time, so that a busy machine shows nearly the same as a
//! quiet one.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::kube::{Api, Reply, Request};

use super::api::Size;
use super::churn::{FORM, lists};
use super::subject::{ServerKind, Subject};
use crate::compare::proc::Snapshot;

/// Settings of the measurement.
pub(super) struct StartPlan<'p> {
    pub(super) dir: &'p Path,
    pub(super) programs: [&'p Path; 2],
    pub(super) size: Size,
    pub(super) starts: u32,
    pub(super) server_core: usize,
    pub(super) load_core: usize,
}

/// Processor time of one start, and the part outside the kernel.
pub(super) type Cost = (Duration, Duration);

/// Starts both servers in turns; returns the cheapest start of each.
///
/// # Errors
/// When a server does not start.
pub(super) fn measure(plan: &StartPlan<'_>) -> Result<[Cost; 2]> {
    sockets::pin_to_core(plan.load_core).with_context(|| format!("core {}", plan.load_core))?;
    let api = api(plan.size);
    let endpoint = format!("endpoint {}", api.url());
    let (name, address) = plan.size.known(0);
    let mut least = [(Duration::MAX, Duration::MAX); 2];
    for _ in 0..plan.starts {
        for (kind, least) in ServerKind::ALL.into_iter().zip(&mut least) {
            let subject = Subject::new(kind, plan.programs[kind as usize], plan.dir, &endpoint)?;
            let before = Snapshot::take()?;
            let (started, took) = subject.start(&[plan.server_core], (&name, address))?;
            let usage = Snapshot::take()?.since(&before, took, started.running.pid(), std::process::id());
            eprintln!("{}: {:?}, {:?} outside the kernel", kind.name(), usage.server, usage.server_user);
            *least = (*least).min((usage.server, usage.server_user));
        }
    }
    Ok(least)
}

/// Starts an API with its lists ready.
pub(super) fn api(size: Size) -> Api {
    let lists = lists(size);
    Api::start(move |request| reply(request, &lists))
}

fn reply(request: &Request, lists: &[(String, Vec<u8>); 3]) -> Reply {
    match lists.iter().find(|(path, _)| *path == request.path) {
        Some((_, list)) if request.is_watch_list() => {
            let pieces = list.chunks(PIECE).map(<[u8]>::to_vec);
            pieces.fold(Reply::watch(FORM), Reply::octets).stall()
        }
        Some(_) => Reply::failure(FORM, 410, "Expired"),
        None => Reply::failure(FORM, 404, "NotFound"),
    }
}

/// Bytes of a chunk.
const PIECE: usize = 2_048;
