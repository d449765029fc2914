//! Code shared by the plugins for a cluster's zones: transfers, and failures before objects are
//! synced.

use ::kubernetes::{AnswerOutcome, Progress, Transfer};
use kubernetes_api::objects::Kind;
use plugin::failure::{Failure, FailureKind};
use plugin::zone_request::{Next, Push, RecordByRecord, ZoneOutcome};

/// Converts the cluster's answer to a zone request.
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

/// Returns the failure of a query that needs objects of a kind that is not synced.
pub(crate) fn not_known_yet(kind: Kind) -> Failure {
    // The plugin is always `kubernetes`: it also watches the objects for `k8s_external`.
    Failure::own("kubernetes", FailureKind::NotReady, format!("{} are not known yet", kind.resource()))
}
