//! A query on its way in through the steps of a server block.

use std::sync::Arc;

use wire::{Message, Query};

use crate::ServedZone;
use plugin::QueryContext;
use plugin::failure::Failure;
use plugin::step::{Back, Inward, Needs, Sought};

/// A query on its way in through the steps of a server block. Each step runs once.
pub(crate) struct Inbound<'h, 'q> {
    /// The zone whose block has the steps.
    pub(crate) zone: &'h Arc<ServedZone>,
    /// The query as the steps so far have changed it.
    pub(crate) sought: Sought<'q>,
    /// The steps that act on the answer, outermost first: index and act.
    pub(crate) backs: Vec<(usize, Box<dyn Back + 'h>)>,
    /// Index of the step that runs next, or that needs other answers.
    pub(crate) next: usize,
    /// Steps below this index have counted the client's query.
    pub(crate) counted: usize,
}

/// Where a query stops on its way in.
pub(crate) enum Stop<'h> {
    /// Below the last step.
    Sources,
    /// At a step that needs other answers: [`Inbound::resume`] takes its result.
    Needs(Box<dyn Needs<'h> + 'h>),
    /// At a step that answers.
    Answer(Box<Message>),
    /// At a step that fails.
    Fail(Failure),
    /// At a step that drops the query.
    Silence,
}

impl<'h, 'q> Inbound<'h, 'q> {
    /// A query above the step with index `next`.
    pub(crate) fn new(zone: &'h Arc<ServedZone>, query: &'q Query<'q>, next: usize, counted: usize) -> Self
    where
        'h: 'q,
    {
        Self { zone, sought: Sought::new(query, &zone.server, false), backs: Vec::new(), next, counted }
    }

    /// A client's query below steps that do not act on it.
    pub(crate) fn passed(zone: &'h Arc<ServedZone>, query: &'q Query<'q>) -> Self
    where
        'h: 'q,
    {
        let steps = zone.block.pipeline.steps().len();
        Self::new(zone, query, steps, steps)
    }

    /// Runs the steps that are left.
    pub(crate) fn run(&mut self, context: &QueryContext<'_>) -> Stop<'h> {
        while let Some(step) = self.zone.block.pipeline.steps().get(self.next) {
            self.sought.counts = self.next >= self.counted;
            self.counted = self.counted.max(self.next + 1);
            let inward = step.inward(&mut self.sought, context);
            if let Some(stop) = self.take(inward) {
                return stop;
            }
        }
        Stop::Sources
    }

    /// Continues with the result of the step that needed other answers.
    pub(crate) fn resume(&mut self, inward: Inward<'h>, context: &QueryContext<'_>) -> Stop<'h> {
        self.take(inward).unwrap_or_else(|| self.run(context))
    }

    /// Whether the steps leave the query and its answer as they are.
    pub(crate) fn is_unchanged(&self, stop: &Stop<'_>) -> bool {
        matches!(stop, Stop::Sources) && self.backs.is_empty() && self.sought.is_as_asked()
    }

    fn take(&mut self, inward: Inward<'h>) -> Option<Stop<'h>> {
        match inward {
            Inward::Pass => {}
            Inward::Back(back) => self.backs.push((self.next, back)),
            Inward::Answer(message) => return Some(Stop::Answer(message)),
            Inward::Fail(failure) => return Some(Stop::Fail(failure)),
            Inward::Silence => return Some(Stop::Silence),
            Inward::Needs(needs) => return Some(Stop::Needs(needs)),
        }
        self.next += 1;
        None
    }
}
