//! `file`: zones from zone files, answered from memory and swapped as a whole.

mod setup;
mod table;

use std::sync::Arc;

use wire::{Class, Name, Query, Reply, ZoneRequest};
use zone::Answered;

use self::setup::PLUGIN;
pub(crate) use self::setup::read;
pub use self::setup::{FileSpec, ZoneSpec};
use self::table::{ZoneTable, ZoneTables};
use crate::zone_answer::{explain, is_denied, lookup, transfer, write};
use metrics::counters::ThreadCounters;
use plugin::args::Result;
use plugin::failure::{Failure, FailureKind};
use plugin::hooks::ReplySize;
use plugin::spec::{BuildContext, Explanation, Source, SourceSpec};
use plugin::zone_request::ZoneOutcome;
use plugin::{Fallthrough, HostsGuard, Lookup, QueryContext};

/// The zones of one server block.
struct File {
    /// The one with the longest name first.
    tables: Vec<Arc<ZoneTable>>,
    fallthrough: Fallthrough,
    size: ReplySize,
    /// No plugin of the block is below this one: names outside of the zones are refused, as in CoreDNS.
    is_last: bool,
}

impl SourceSpec for FileSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Source>> {
        let tables = context.reload_state.get::<ZoneTables>();
        let read = |zone| {
            let table = tables.table(zone);
            table.read(context.logger)?;
            Ok(table)
        };
        Ok(Box::new(File {
            tables: self.zones.iter().map(read).collect::<Result<_>>()?,
            fallthrough: self.fallthrough.clone(),
            size: context.hooks.size,
            is_last: context.last_handler == Some(PLUGIN),
        }))
    }
}

impl File {
    fn table(&self, name: &Name) -> Option<&ZoneTable> {
        self.tables.iter().find(|table| name.is_within(&table.spec.origin)).map(|table| &**table)
    }

    /// Whether names that do not exist pass. As in CoreDNS an empty non-terminal passes, too.
    fn passes(&self, name: &Name, answered: Answered, reply: &Reply<'_>) -> bool {
        is_denied(answered, reply) && self.fallthrough.through(name)
    }
}

impl Source for File {
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        if query.class != Class::IN {
            return Lookup::Pass;
        }
        let Some(table) = self.table(&query.name) else {
            return if self.is_last { Lookup::Fail(Failure::NoPlugin) } else { Lookup::Pass };
        };
        let zone = table.current.load();
        let Some(zone) = &*zone else { return Lookup::Fail(not_read()) };
        let answered = write(zone, &self.size, query, context, reply);
        if answered.is_ok_and(|answered| self.passes(&query.name, answered, reply)) {
            reply.clear();
            return Lookup::Pass;
        }
        lookup(PLUGIN, answered)
    }

    fn of_zone(
        &self,
        request: &ZoneRequest<'_>,
        context: &QueryContext<'_>,
        _: &mut Reply<'_>,
    ) -> ZoneOutcome {
        let name = &request.query.name;
        let table = self.tables.iter().find(|table| table.spec.origin == *name);
        let Some(table) = table.filter(|_| request.is_transfer()) else { return ZoneOutcome::Pass };
        let Some(zone) = table.current.load_full() else { return ZoneOutcome::Fail(not_read()) };
        transfer(zone, request, context)
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        let refused =
            || Explanation::Ends("REFUSED: the name is in no zone, and no plugin is below".to_owned());
        if query.class != Class::IN {
            return Explanation::Passes(None);
        }
        let Some(table) = self.table(&query.name) else {
            return if self.is_last { refused() } else { Explanation::Passes(None) };
        };
        let file = table.spec.file.display();
        let Some(zone) = table.current.load_full() else {
            return Explanation::Ends(format!("SERVFAIL: {file} is not read yet"));
        };
        let mut bytes = Vec::new();
        let mut reply = Reply::start(&mut bytes, query);
        let (answered, what) = explain(&zone, file, query, &mut reply);
        match answered {
            Ok(answered) if self.passes(&query.name, answered, &reply) => {
                Explanation::Passes(Some(format!("not in {}", table.spec.file.display())))
            }
            _ => Explanation::Ends(what),
        }
    }
}

fn not_read() -> Failure {
    Failure::own(PLUGIN, FailureKind::NotReady, "the zone's file is not read yet")
}
