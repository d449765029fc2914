//! Interprets error statuses, and decides when to list again.

use std::time::Instant;

use crate::decode::{Encoding, Status};
use crate::settings::WatchError;

use super::{Phase, Reflector, message_of};

impl Reflector {
    /// Lists again since memory is available for skipped objects, which a watch does not repeat.
    pub(in crate::watch) fn relist_for_memory(&mut self) -> WatchError {
        self.phase = Phase::Start;
        WatchError::RelistForMemory
    }

    /// Interprets an error status of the API.
    pub(super) fn refused(&mut self, now: Instant, code: u16, status: Status) -> WatchError {
        let watch = self.phase == Phase::Watch || self.phase == Phase::Start && self.watch_lists;
        let Status { reason, message, causes, retry_after_s, .. } = status;
        self.set_retry_after(now, Some(retry_after_s));
        let ahead = causes.iter().any(|cause| &**cause == "ResourceVersionTooLarge");
        let message = message_of(&message, &reason);
        match code {
            // After a restore from a backup the API's versions may be lower than the client's.
            _ if ahead => self.expired(message),
            410 => self.expired(message),
            400 | 422 if self.phase == Phase::Start && self.watch_lists => {
                self.watch_lists = false;
                WatchError::Unsupported { status: code, message }
            }
            406 | 415 if self.preferred == Encoding::Protobuf => {
                self.preferred = Encoding::Json;
                WatchError::Unsupported { status: code, message }
            }
            401 => WatchError::Unauthorized { message },
            403 => {
                WatchError::Forbidden { verb: if watch { "watch" } else { "list" }, kind: self.kind, message }
            }
            404 => WatchError::NoSuchResource { kind: self.kind, message },
            _ => WatchError::Status { status: code, message },
        }
    }

    fn expired(&mut self, message: Box<str>) -> WatchError {
        self.phase = Phase::Start;
        WatchError::Expired(message)
    }
}
