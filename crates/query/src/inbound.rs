//! A query on its way in through the middleware of a server block.

use std::sync::Arc;
use std::time::Duration;

use wire::{Message, Query};

use crate::ServedZone;
use plugin::QueryContext;
use plugin::failure::Failure;
use plugin::middleware::{EffectiveQuery, NeedsSubquery, OnQuery, ResponseHook};

/// A query on its way in through the middleware of a server block, each step of which runs once.
pub(crate) struct Inbound<'h, 'q> {
    /// A zone of the block with the middleware.
    pub(crate) zone: &'h Arc<ServedZone>,
    /// The query as the middleware so far has changed it.
    pub(crate) effective: EffectiveQuery<'q>,
    /// Hooks for the answer with the index of their middleware, outermost first.
    pub(crate) backs: Vec<(usize, Box<dyn ResponseHook + 'h>)>,
    /// Index of the middleware that runs next, or that needs a subquery.
    pub(crate) next: usize,
    /// Middleware below this index has counted the client's query.
    pub(crate) counted: usize,
}

/// Where a query stops on its way in.
pub(crate) enum Stop<'h> {
    /// Below all middleware.
    Sources,
    /// At middleware that needs a subquery: [`Inbound::resume`] takes its result.
    Needs(Box<dyn NeedsSubquery<'h> + 'h>),
    /// At middleware that answers.
    Answer(Box<Message>),
    /// At middleware that fails.
    Fail(Failure),
    /// At middleware that drops the query.
    Silence,
    /// Below all middleware, whose answer is known and leaves after a delay.
    Wait(Duration),
}

impl<'h, 'q> Inbound<'h, 'q> {
    /// Creates a query above the middleware with index `next`.
    pub(crate) fn new(zone: &'h Arc<ServedZone>, query: &'q Query<'q>, next: usize, counted: usize) -> Self
    where
        'h: 'q,
    {
        Self {
            zone,
            effective: EffectiveQuery::new(query, &zone.server, false),
            backs: Vec::new(),
            next,
            counted,
        }
    }

    /// Creates a client's query below middleware that does not act on it.
    pub(crate) fn passed(zone: &'h Arc<ServedZone>, query: &'q Query<'q>) -> Self
    where
        'h: 'q,
    {
        let steps = zone.block.pipeline.steps().len();
        Self::new(zone, query, steps, steps)
    }

    /// Runs the rest of the middleware.
    pub(crate) fn run(&mut self, context: &QueryContext<'_>) -> Stop<'h> {
        while let Some(step) = self.zone.block.pipeline.steps().get(self.next) {
            self.effective.counts = self.next >= self.counted;
            self.counted = self.counted.max(self.next + 1);
            let inward = step.on_query(&mut self.effective, context);
            if let Some(stop) = self.take(inward) {
                return stop;
            }
        }
        Stop::Sources
    }

    /// Continues with the result of the middleware that needed a subquery.
    pub(crate) fn resume(&mut self, inward: OnQuery<'h>, context: &QueryContext<'_>) -> Stop<'h> {
        self.take(inward).unwrap_or_else(|| self.run(context))
    }

    /// Whether the middleware leaves the query and its answer as they are.
    pub(crate) fn is_unchanged(&self, stop: &Stop<'_>) -> bool {
        matches!(stop, Stop::Sources) && self.backs.is_empty() && self.effective.is_unchanged()
    }

    fn take(&mut self, inward: OnQuery<'h>) -> Option<Stop<'h>> {
        match inward {
            OnQuery::Pass => {}
            OnQuery::Hook(back) => self.backs.push((self.next, back)),
            OnQuery::Answer(message) => return Some(Stop::Answer(message)),
            OnQuery::Fail(failure) => return Some(Stop::Fail(failure)),
            OnQuery::Drop => return Some(Stop::Silence),
            OnQuery::NeedsSubquery(needs) => return Some(Stop::Needs(needs)),
        }
        self.next += 1;
        None
    }
}
