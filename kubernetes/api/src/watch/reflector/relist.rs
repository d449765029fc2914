//! What a refusal means, and when all is listed anew.

use std::time::Instant;

use crate::decode::{Form, Status};
use crate::settings::Lost;

use super::{Follower, Phase, message_of};

impl Follower {
    /// What was left out for want of room finds room by now: no watch tells of it again.
    pub(in crate::watch) fn has_room_again(&mut self) -> Lost {
        self.phase = Phase::Start;
        Lost::Crowded
    }

    /// The API has said why not. What follows from that is decided here.
    pub(super) fn refused(&mut self, now: Instant, code: u16, status: Status) -> Lost {
        let watch = self.phase == Phase::Watch || self.phase == Phase::Start && self.watch_lists;
        let Status { reason, message, causes, retry_after_s, .. } = status;
        self.come_again(now, Some(retry_after_s));
        let ahead = causes.iter().any(|cause| &**cause == "ResourceVersionTooLarge");
        let message = message_of(&message, &reason);
        match code {
            // Once it has been restored from a backup it may not have come as far as we have.
            _ if ahead => self.expired(message),
            410 => self.expired(message),
            400 | 422 if self.phase == Phase::Start && self.watch_lists => {
                self.watch_lists = false;
                Lost::Unoffered { status: code, message }
            }
            406 | 415 if self.preferred == Form::Protobuf => {
                self.preferred = Form::Json;
                Lost::Unoffered { status: code, message }
            }
            401 => Lost::Unauthorized { message },
            403 => Lost::Forbidden { verb: if watch { "watch" } else { "list" }, kind: self.kind, message },
            404 => Lost::Unknown { kind: self.kind, message },
            _ => Lost::Status { status: code, message },
        }
    }

    fn expired(&mut self, message: Box<str>) -> Lost {
        self.phase = Phase::Start;
        Lost::Expired(message)
    }
}
