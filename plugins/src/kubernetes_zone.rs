//! Shared by the plugins for a cluster's zones: transfers, and failures before objects are synced.

use ::kubernetes::{AnswerOutcome, Progress, Transfer};
use kubernetes_api::objects::Kind;
use plugin::failure::{Failure, FailureKind};
use plugin::zone_request::{Next, Push, RecordByRecord, ZoneOutcome};

/// The outcome of a zone request, from the cluster's answer.
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

/// The failure while objects of this kind are needed but not synced.
pub(crate) fn not_known_yet(kind: Kind) -> Failure {
    // Always `kubernetes`: it watches the objects, also for `k8s_external`.
    Failure::own("kubernetes", FailureKind::NotReady, format!("{} are not known yet", kind.resource()))
}
