//! Removes the header of the PROXY protocol from what a connection receives.

use std::io;
use std::time::Instant;

use super::super::proxy_header::Begun;
use super::Connection;

impl Connection {
    /// Removes the header from `count` received bytes, and returns how many remain at the start of
    /// `received`; `None` if all of them are the header's.
    ///
    /// # Errors
    /// The header is invalid or refused.
    pub(super) fn take_header(
        &mut self,
        received: &mut [u8],
        count: usize,
        now: Instant,
    ) -> io::Result<Option<usize>> {
        let Some(header) = self.header.as_mut().filter(|_| count > 0) else { return Ok(Some(count)) };
        let before = header.octets().len();
        header.push(&received[..count]);
        let Some(begun) = header.begun()? else { return Ok(None) };
        let begins = header.octets()[..before].to_vec();
        self.header = None;
        match begun {
            Begun::Other => {
                // A TLS record does not begin like a header.
                if !begins.is_empty() && self.tls.is_some() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                self.keep(&begins, now);
                Ok(Some(count))
            }
            Begun::Header { length, client } => {
                self.source.peer = client.unwrap_or(self.source.peer);
                // The bytes before this read were the header's.
                let from = length.saturating_sub(before).min(count);
                received.copy_within(from..count, 0);
                Ok(Some(count - from).filter(|rest| *rest > 0))
            }
        }
    }
}
