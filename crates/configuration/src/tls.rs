//! Certificates of each block's `tls`, and the check that blocks of one listener agree.

use std::collections::HashMap;
use std::sync::Arc;

use corefile::Located;
use plugin::args::Result;
use plugin::endpoint::Endpoint;
use plugin::{BlockSpec, SetupError, Spec};
use plugins::tls::{Certificates, ServerTls, TlsSpec};
use query::ServedZone;

use crate::reload_state::PersistentState;

/// Loads the files of each block's `tls`.
pub(crate) fn certificates(spec: &Spec, shared: &PersistentState) -> Result<HashMap<usize, Arc<ServerTls>>> {
    let all = shared.lasting.get::<Certificates>();
    let read =
        |(index, block): (usize, &BlockSpec)| {
            let tls = block.get::<TlsSpec>()?;
            let (now, serves) = (clock::now(), shared.resolve_names);
            let loaded = all.load(&tls.settings, serves, now, &shared.logger);
            Some(loaded.map(|loaded| (index, loaded)).map_err(|error| {
                Located::new(tls.place_of(&error), SetupError::Tls { plugin: "tls", error })
            }))
        };
    spec.blocks.iter().enumerate().filter_map(read).collect()
}

/// Returns the TLS configuration of a listener; the `tls` of all its blocks must be equal.
pub(crate) fn of_listener(
    zones: &[Arc<ServedZone>],
    spec: &Spec,
    tls: &HashMap<usize, Arc<ServerTls>>,
) -> Result<Option<Arc<ServerTls>>> {
    let of = |zone: &Arc<ServedZone>| Some((zone.clone(), tls.get(&zone.block.index)?.clone()));
    let mut each = zones.iter().filter_map(of);
    let Some((first_zone, first)) = each.next() else { return Ok(None) };
    for (zone, other) in each {
        if let Some(why) = first.differs_from(&other) {
            let at = |zone: &ServedZone| spec.blocks[zone.block.index].get::<TlsSpec>().map(|tls| &tls.at);
            let (at, first) =
                (at(&zone).unwrap_or(&zone.block.at), at(&first_zone).unwrap_or(&zone.block.at));
            let Endpoint { transport, address } = zone.endpoint;
            let server = format!("{}://{}:{}", transport.name(), zone.zone, address.port());
            return Err(Located::new(at, SetupError::TlsConflict { server, first: first.to_string(), why }));
        }
    }
    Ok(Some(first))
}
