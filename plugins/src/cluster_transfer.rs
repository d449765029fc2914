//! The transfer of a cluster's zone, as the plugins that have such zones answer a request for one.

use ::kubernetes::{Answered, Told, Transfer};
use plugin::failure::Failure;
use plugin::messages::{Next, OfZone, Push, RecordByRecord};

/// What a source does with a request for a zone of which the cluster says this.
pub(crate) fn of_zone(transfer: Result<Transfer, Answered>) -> OfZone {
    match transfer {
        Ok(mut transfer) => {
            OfZone::Stream(Box::new(RecordByRecord(move |push: &mut Push<'_>| match transfer.next(push) {
                Told::Full => Next::More,
                Told::Paused => Next::Later,
                Told::All => Next::End,
            })))
        }
        Err(Answered::Unknown(kind)) => OfZone::Fail(Failure::ClusterUnknown(kind.resource())),
        Err(_) => OfZone::Pass,
    }
}
