//! What the plugins that have a cluster's zones share: how they answer a request for a zone, and what is not known yet.

use ::kubernetes::{AnswerOutcome, Progress, Transfer};
use kubernetes_api::objects::Kind;
use plugin::failure::{Failure, FailureKind};
use plugin::zone_request::{Next, Push, RecordByRecord, ZoneOutcome};

/// What a source does with a request for a zone of which the cluster says this.
pub(crate) fn of_zone(transfer: Result<Transfer, AnswerOutcome>) -> ZoneOutcome {
    match transfer {
        Ok(mut transfer) => ZoneOutcome::Stream(Box::new(RecordByRecord(move |push: &mut Push<'_>| {
            match transfer.next(push) {
                Progress::Full => Next::More,
                Progress::Paused => Next::Later,
                Progress::All => Next::End,
            }
        }))),
        Err(AnswerOutcome::Unsynced(kind)) => ZoneOutcome::Fail(not_known_yet(kind)),
        Err(_) => ZoneOutcome::Pass,
    }
}

/// Objects of this kind decide, and are not known yet.
pub(crate) fn not_known_yet(kind: Kind) -> Failure {
    // By whatever name a cluster's zone is asked for, it is `kubernetes` that waits for it.
    Failure::own("kubernetes", FailureKind::NotReady, format!("{} are not known yet", kind.resource()))
}
