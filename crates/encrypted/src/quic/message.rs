//! The message on a stream, and what RFC 9250 forbids in it.

use quinn::{ReadError, ReadExactError, RecvStream};
use wire::accept;

use crate::client::MESSAGE_BYTES;

/// Why a stream has no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMessage {
    /// The client has reset the stream, or its connection has ended.
    Gone,
    /// The client broke the protocol (RFC 9250, section 4.3.3).
    Protocol,
}

impl From<ReadError> for NoMessage {
    fn from(_: ReadError) -> Self {
        Self::Gone
    }
}

/// Reads a message behind its length: its first [`MESSAGE_BYTES`], and whether that is all of it.
///
/// # Errors
/// The stream ends before, or the length is 0.
pub(super) async fn read(stream: &mut RecvStream) -> Result<(Vec<u8>, bool), NoMessage> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).await.map_err(|error| match error {
        ReadExactError::FinishedEarly(_) => NoMessage::Protocol,
        ReadExactError::ReadError(_) => NoMessage::Gone,
    })?;
    let length = usize::from(u16::from_be_bytes(length));
    if length == 0 {
        return Err(NoMessage::Protocol);
    }
    let (mut message, mut left) = (Vec::new(), length);
    while left > 0 {
        let chunk = stream.read_chunk(left, true).await?.ok_or(NoMessage::Protocol)?;
        left -= chunk.bytes.len();
        let room = MESSAGE_BYTES - message.len();
        message.extend_from_slice(&chunk.bytes[..room.min(chunk.bytes.len())]);
    }
    Ok((message, length <= MESSAGE_BYTES))
}

/// Waits for the end of a stream.
///
/// # Errors
/// More bytes are received.
pub(super) async fn end(stream: &mut RecvStream) -> Result<(), NoMessage> {
    match stream.read_chunk(1, true).await? {
        None => Ok(()),
        Some(_) => Err(NoMessage::Protocol),
    }
}

/// Whether a message has what RFC 9250 forbids: an ID other than 0, or the option
/// edns-tcp-keepalive.
pub(super) fn is_forbidden(message: &[u8]) -> bool {
    let has_id = message.get(..2).is_some_and(|id| id != [0, 0]);
    let verdict = accept(message);
    let options = verdict.query().and_then(|query| query.edns.as_ref()).map_or(&[][..], |edns| edns.options);
    has_id || has_option(options, TCP_KEEPALIVE)
}

fn has_option(mut options: &[u8], code: u16) -> bool {
    while let Some((head, rest)) = options.split_first_chunk::<4>() {
        if head[..2] == code.to_be_bytes() {
            return true;
        }
        options = rest.get(usize::from(u16::from_be_bytes([head[2], head[3]]))..).unwrap_or_default();
    }
    false
}

/// The option edns-tcp-keepalive (RFC 7828).
const TCP_KEEPALIVE: u16 = 11;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_keepalive_are_forbidden() {
        let query = |id: u8, options: &[u8]| {
            let mut message = vec![0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, b'a', 0, 0, 1, 0, 1];
            message.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, options.len() as u8]);
            message.extend_from_slice(options);
            message
        };
        for (id, options, forbidden) in [
            (0, &[][..], false),
            (1, &[], true),
            (0, &[0, 12, 0, 1, 0], false),
            (0, &[0, 11, 0, 0], true),
            (0, &[0, 12, 0, 1, 0, 0, 11, 0, 2, 0, 1], true),
        ] {
            assert_eq!(is_forbidden(&query(id, options)), forbidden, "{id} {options:?}");
        }
        assert!(!is_forbidden(&[0]));
    }
}
