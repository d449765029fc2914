//! `auto`: zones from the zone files of a directory.

mod scan;
mod setup;
mod table;

use std::sync::Arc;

use wire::{Class, Name, Query, Reply, ZoneRequest};

use self::setup::PLUGIN;
pub(crate) use self::setup::read;
pub use self::setup::{AutoSpec, DirectorySpec};
use self::table::{AutoTable, AutoTables, Served};
use crate::zone_answer::{explain, lookup, transfer, write};
use metrics::counters::ThreadCounters;
use plugin::args::Result;
use plugin::failure::Failure;
use plugin::hooks::ReplySize;
use plugin::spec::{BuildContext, Explanation, Source, SourceSpec};
use plugin::zone_request::ZoneOutcome;
use plugin::{HostsGuard, Lookup, QueryContext};

/// The directories of one server block.
struct Auto {
    directories: Vec<(Vec<Name>, Arc<AutoTable>)>,
    size: ReplySize,
    /// No plugin of the block is below this one: names without a zone are refused, as in CoreDNS.
    is_last: bool,
}

impl SourceSpec for AutoSpec {
    fn build(&self, context: &BuildContext<'_>) -> Result<Box<dyn Source>> {
        let tables = context.reload_state.get::<AutoTables>();
        let scanned = |spec: &DirectorySpec| {
            let table = tables.table(spec);
            table.scan(context.logger);
            (spec.origins.clone(), table)
        };
        Ok(Box::new(Auto {
            directories: self.directories.iter().map(scanned).collect(),
            size: context.hooks.size,
            is_last: context.last_handler == Some(PLUGIN),
        }))
    }
}

/// Where a name is.
enum Place<'z> {
    /// In no directive's zones.
    Outside,
    /// In a directive's zones, but in no zone file's.
    NoZone,
    Zone(&'z Served),
}

impl Auto {
    /// Calls `act` with the zone of the longest name of the first directive that has one.
    fn with_place<T>(&self, name: &Name, act: impl FnOnce(Place<'_>) -> T) -> T {
        let mut place = Place::Outside;
        for (origins, table) in &self.directories {
            if !origins.iter().any(|origin| name.is_within(origin)) {
                continue;
            }
            let zones = table.zones.load();
            match name.suffixes().find_map(|suffix| zones.get(suffix)) {
                Some(served) => return act(Place::Zone(served)),
                None => place = Place::NoZone,
            }
        }
        act(place)
    }
}

impl Source for Auto {
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
        self.with_place(&query.name, |place| match place {
            Place::Zone(Served { zone, .. }) => {
                lookup(PLUGIN, write(zone, &self.size, query, context, reply))
            }
            Place::NoZone if self.is_last => Lookup::Fail(Failure::NoPlugin),
            Place::NoZone | Place::Outside => Lookup::Pass,
        })
    }

    fn of_zone(
        &self,
        request: &ZoneRequest<'_>,
        context: &QueryContext<'_>,
        _: &mut Reply<'_>,
    ) -> ZoneOutcome {
        let name = &request.query.name;
        if !request.is_transfer() {
            return ZoneOutcome::Pass;
        }
        self.with_place(name, |place| match place {
            Place::Zone(Served { zone, .. }) if zone.origin() == name => {
                transfer(zone.clone(), request, context)
            }
            _ => ZoneOutcome::Pass,
        })
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        if query.class != Class::IN {
            return Explanation::Passes(None);
        }
        self.with_place(&query.name, |place| match place {
            Place::Zone(Served { zone, file }) => {
                let mut bytes = Vec::new();
                let mut reply = Reply::start(&mut bytes, query);
                Explanation::Ends(explain(zone, file.display(), query, &mut reply).1)
            }
            Place::NoZone if self.is_last => Explanation::Ends(
                "REFUSED: no zone file has the name's zone, and no plugin is below".to_owned(),
            ),
            Place::NoZone => Explanation::Passes(Some("no zone file has the name's zone".to_owned())),
            Place::Outside => Explanation::Passes(None),
        })
    }
}
