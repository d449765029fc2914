//! The transfer of a cluster's zone, as the plugins that have such zones answer a request for one.

use ::kubernetes::{Answered, Progress, Transfer};
use plugin::failure::Failure;
use plugin::messages::{Next, OfZone, Push, RecordByRecord};

/// What a source does with a request for a zone of which the cluster says this.
pub(crate) fn of_zone(transfer: Result<Transfer, Answered>) -> OfZone {
    match transfer {
        Ok(mut transfer) => {
            OfZone::Stream(Box::new(RecordByRecord(move |push: &mut Push<'_>| match transfer.next(push) {
                Progress::Full => Next::More,
                Progress::Paused => Next::Later,
                Progress::All => Next::End,
            })))
        }
        Err(Answered::Unknown(kind)) => OfZone::Fail(Failure::ClusterUnknown(kind.resource())),
        Err(_) => OfZone::Pass,
    }
}
