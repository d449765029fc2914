//! Patches an annotation of this node, the only write to the API.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::decode::{self, Encoding};
use crate::settings::{Access, WatchError};

use super::client_config::{Api, access_error};
use super::connection::Connection;

/// Sets or removes an annotation of a node. Blocks until the reply: not for tokio threads.
///
/// # Errors
/// [`WatchError`].
pub fn annotate(
    access: &Access,
    node: &str,
    annotation: &str,
    value: Option<&str>,
) -> Result<(), WatchError> {
    let possible = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if node.is_empty() || !node.bytes().all(possible) {
        return Err(access_error(node, "not a node name"));
    }
    let api = Api::from_access(access)?;
    let credentials = api.credentials.header()?;
    let path = format!("/api/v1/nodes/{node}");
    let patch = json!({"metadata": {"annotations": {annotation: value}}}).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| access_error("a thread", &error.to_string()))?;
    let outcome = runtime.block_on(async {
        let mut connection = Connection::open(api).await?;
        let sent = send(&mut connection, &path, patch, credentials.as_deref());
        timeout(REQUEST_TIMEOUT, sent).await.unwrap_or(Err(WatchError::Slow(REQUEST_TIMEOUT)))
    });
    // Abandons a lookup that blocks.
    runtime.shutdown_background();
    outcome
}

async fn send(
    connection: &mut Connection,
    path: &str,
    patch: String,
    credentials: Option<&str>,
) -> Result<(), WatchError> {
    let reply = connection.patch(path, patch, credentials).await?;
    let status = reply.status().as_u16();
    if status == 200 {
        return Ok(());
    }
    let (mut body, mut bytes) = (reply.into_body(), Vec::new());
    while let Some(Ok(frame)) = connection.next_frame(&mut body).await {
        bytes.extend(frame.into_data().unwrap_or_default());
        if bytes.len() > MAX_REFUSAL_BYTES {
            break;
        }
    }
    let status_object = decode::status(Encoding::Json, &bytes).ok();
    let message = status_object.map(|status| status.message).unwrap_or_default();
    Err(match status {
        401 => WatchError::Unauthorized { message },
        _ => WatchError::Status { status, message },
    })
}

/// Timeout for the whole exchange.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REFUSAL_BYTES: usize = 16 << 10;
