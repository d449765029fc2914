//! The one change that is ever asked of an API: an annotation of this node.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::decode::{self, Form};
use crate::settings::{Access, Lost};

use super::client_config::{Api, lost};
use super::connection::Connection;

/// Gives a node an annotation, or takes it away. Waits for the reply: not for threads of tokio.
///
/// # Errors
/// [`Lost`]: who asks may not, or is not heard.
pub fn annotate(access: &Access, node: &str, annotation: &str, value: Option<&str>) -> Result<(), Lost> {
    let possible = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if node.is_empty() || !node.bytes().all(possible) {
        return Err(lost(node, "no name of a node"));
    }
    let api = Api::find(access)?;
    let who = api.credentials.header()?;
    let path = format!("/api/v1/nodes/{node}");
    let patch = json!({"metadata": {"annotations": {annotation: value}}}).to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| lost("a thread", &error.to_string()))?;
    let outcome = runtime.block_on(async {
        let mut connection = Connection::open(api).await?;
        let asked = ask(&mut connection, &path, patch, who.as_deref());
        timeout(PATIENCE, asked).await.unwrap_or(Err(Lost::Slow(PATIENCE)))
    });
    // A lookup that hangs is left behind.
    runtime.shutdown_background();
    outcome
}

async fn ask(connection: &mut Connection, path: &str, patch: String, who: Option<&str>) -> Result<(), Lost> {
    let reply = connection.patch(path, patch, who).await?;
    let status = reply.status().as_u16();
    if status == 200 {
        return Ok(());
    }
    let (mut body, mut octets) = (reply.into_body(), Vec::new());
    while let Some(Ok(frame)) = connection.piece(&mut body).await {
        octets.extend(frame.into_data().unwrap_or_default());
        if octets.len() > MOST_REFUSAL {
            break;
        }
    }
    let told = decode::status(Form::Json, &octets).ok();
    let message = told.map(|told| told.message).unwrap_or_default();
    Err(match status {
        401 => Lost::Unauthorized { message },
        _ => Lost::Status { status, message },
    })
}

/// For the whole of a reply.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_REFUSAL: usize = 16 << 10;
